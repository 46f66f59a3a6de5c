"""Check the launcher, ``env_cfg`` and ``randomness``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import multiprocessing

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import check_arguments

from ._components import check_section, need_mapping

__all__ = ["check_environment", "check_launcher", "check_randomness"]

_ENV = {
    "cudnn_benchmark": bool,
    "mp_cfg": Any,
    "dist_cfg": Any,
    "npu_cfg": Any,
    "resource_limit": int,
}
_PROCESSES = {"mp_start_method": Any, "opencv_num_threads": int}
_RANDOMNESS = {"seed": int, "diff_rank_seed": bool, "deterministic": bool}


def check_launcher(name: Any, where: str) -> None:
    """Check that there is a launcher of that name; ``None`` stands for ``"auto"``."""
    try:
        mm_dist.check_dist_arguments("auto" if name is None else name)
    except mm_dist.MMDistError as error:
        raise ConfigError(f"{where}: {error}") from error


def check_environment(env: Any, where: str) -> None:
    """Check ``env_cfg``; ``None`` is an empty one.

    What depends on the machine, such as whether it has the device, is found when it is set up.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    if env is None:
        return
    check_section(env, where, _ENV)
    if env.get("mp_cfg") is not None:
        place = f"{where}.mp_cfg"
        check_section(env["mp_cfg"], place, _PROCESSES)
        method, methods = (
            env["mp_cfg"].get("mp_start_method"),
            multiprocessing.get_all_start_methods(),
        )
        if method is not None and method not in methods:
            raise ConfigError(
                f"{place}.mp_start_method: {method!r} was given; there are {', '.join(methods)}."
            )
    if env.get("dist_cfg") is not None:
        place, check = f"{where}.dist_cfg", mm_dist.check_dist_arguments
        known = dict.fromkeys(inspect.signature(check).parameters, Any)
        del known["launcher"]  # a key of the whole configuration
        check_section(env["dist_cfg"], place, known)
        # A process group that exists already may have a backend and device that we do not know.
        given = ("backend", "device_type") if mm_dist.is_distributed() else ()
        asked = {name: value for name, value in env["dist_cfg"].items() if name not in given}
        _call(check, asked, place, mm_dist.MMDistError)
    if env.get("npu_cfg") is not None:
        import mm_npu  # noqa: PLC0415 - few have an NPU

        place = f"{where}.npu_cfg"
        switches = need_mapping(env["npu_cfg"], place)
        _call(mm_npu.read_npu_switches, switches, place, mm_npu.MMNpuError)


def check_randomness(cfg: Any, where: str) -> None:
    """Check ``randomness``; ``None`` is an empty one.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    if cfg is None:
        return
    check_section(cfg, where, _RANDOMNESS)
    seed = cfg.get("seed")
    # torch's generators take 64 bits; the epoch and the process are added to it.
    if seed is not None and not 0 <= seed < 2**63:
        raise ConfigError(
            f"{where}.seed: an integer from 0 to 2**63 - 1 or None is needed, got {seed!r}."
        )


def _call(
    check: Callable[..., Any], arguments: Mapping[str, Any], where: str, kind: type[Exception]
) -> None:
    """Let the package that reads a dict check its values, and prefix its error with the path."""
    check_arguments(check, arguments, where, is_partial=True)
    try:
        check(**arguments)
    except kind as error:
        # It begins with the argument's name.
        name = next((f".{one}" for one in arguments if re.match(rf"{one}\b", str(error))), "")
        raise ConfigError(f"{where}{name}: {error}") from error
