"""Check the launcher, ``env_cfg`` and ``randomness``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Literal

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import check_arguments

from ._components import check_section

__all__ = ["check_environment", "check_launcher", "check_randomness"]

_ENV = {
    "cudnn_benchmark": bool,
    "mp_cfg": Any,
    "dist_cfg": Any,
    "npu_cfg": Any,
    "resource_limit": int,
}
_PROCESSES = {
    "mp_start_method": Literal["fork", "spawn", "forkserver"],
    "opencv_num_threads": int,
}
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
        check_section(env["mp_cfg"], f"{where}.mp_cfg", _PROCESSES)
    if env.get("dist_cfg") is not None:
        # A process group that exists already may have a backend and device that we do not know.
        given = ("backend", "device_type") if mm_dist.is_distributed() else ()
        check, place = mm_dist.check_dist_arguments, f"{where}.dist_cfg"
        _check_by(check, env["dist_cfg"], place, mm_dist.MMDistError, given)
    if env.get("npu_cfg") is not None:
        import mm_npu  # noqa: PLC0415 - few have an NPU

        place = f"{where}.npu_cfg"
        _check_by(mm_npu.read_npu_switches, env["npu_cfg"], place, mm_npu.MMNpuError)


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


def _check_by(
    check: Callable[..., Any],
    arguments: Any,
    where: str,
    kind: type[Exception],
    unchecked: tuple[str, ...] = (),
) -> None:
    """Let the package that reads a dict check its values, and prefix its error with the path."""
    names = [name for name in inspect.signature(check).parameters if name != "launcher"]
    check_section(arguments, where, dict.fromkeys(names, Any))
    check_arguments(check, arguments, where, is_partial=True)
    try:
        check(**{name: value for name, value in arguments.items() if name not in unchecked})
    except kind as error:
        # It begins with the argument's name.
        name = next((f".{one}" for one in arguments if re.match(rf"{one}\b", str(error))), "")
        raise ConfigError(f"{where}{name}: {error}") from error
