"""Switches of the device's compiler; like the real ones they can be set, and hardly read."""

from torch_npu._calls import record

_options = {"jitCompile": "enable"}


def set_compile_mode(jit_compile=False):
    """Take anything for a boolean: the string "False" switches it on."""
    _options["jitCompile"] = "enable" if jit_compile else "disable"
    record("set_compile_mode", jit_compile)


def is_jit_compile_false():
    return _options["jitCompile"] == "disable"


class _Config:
    def __setattr__(self, name, value):
        if name == "allow_internal_format":
            _options["ALLOW_INTERNAL_FORMAT"] = "enable" if value else "disable"
        record(f"config.{name}", value)


config = _Config()
