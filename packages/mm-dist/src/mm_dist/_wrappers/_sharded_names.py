"""Parameter names as the bare model has them, though a wrapper holds it as ``module``."""

from typing import Any

from torch import nn


def hide_from_names(wrapper: nn.Module) -> None:
    """Let the state dict of ``wrapper`` have the names of its ``module``, saved and loaded."""
    # untyped in torch
    wrapper.register_state_dict_post_hook(_drop_prefix)  # type: ignore[no-untyped-call]
    wrapper.register_load_state_dict_pre_hook(_add_prefix)  # type: ignore[no-untyped-call]


def _drop_prefix(_: nn.Module, state_dict: Any, prefix: str, __: Any) -> None:
    _rename(state_dict, f"{prefix}module.", prefix)
    metadata = getattr(state_dict, "_metadata", {})
    if f"{prefix}module" in metadata:
        metadata[prefix[:-1]] = metadata.pop(f"{prefix}module")
    _rename(metadata, f"{prefix}module.", prefix)


def _add_prefix(_: nn.Module, state_dict: Any, prefix: str, *__: Any) -> None:
    _rename(state_dict, prefix, f"{prefix}module.")


def _rename(named: Any, start: str, new_start: str) -> None:
    # All out, then all in: a model may have a part named "module" itself.
    moved = {key: named.pop(key) for key in list(named) if key.startswith(start)}
    named.update((new_start + key[len(start) :], value) for key, value in moved.items())
