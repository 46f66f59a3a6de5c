"""Check the launcher, ``env_cfg`` and ``randomness``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import multiprocessing

import mm_dist
from mm_runner.errors import ConfigError

from ._components import check_flag, check_integer, check_keys, check_known, need_mapping

__all__ = ["check_environment", "check_launcher", "check_randomness"]

_ENV_KEYS = ("cudnn_benchmark", "mp_cfg", "dist_cfg", "npu_cfg", "resource_limit")
_RANDOMNESS_KEYS = ("seed", "diff_rank_seed", "deterministic")
# The launcher is a key of the whole configuration.
_DIST_KEYS = tuple(
    name
    for name in inspect.signature(mm_dist.check_dist_arguments).parameters
    if name != "launcher"
)
_OF_GROUP = ("backend", "device_type")


def check_launcher(name: Any, where: str) -> None:
    """Check that there is a launcher of that name; ``None`` stands for ``"auto"``.

    Raises:
        ConfigError: If there is none.
    """
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
    check_known(env, where, _ENV_KEYS)
    check_flag(env, "cudnn_benchmark", where)
    check_integer(env, "resource_limit", where)
    _check_mp_cfg(env.get("mp_cfg"), f"{where}.mp_cfg")
    dist_cfg = env.get("dist_cfg")
    if dist_cfg is not None:
        check_known(dist_cfg, f"{where}.dist_cfg", _DIST_KEYS)
        check = mm_dist.check_dist_arguments
        check_keys(dist_cfg, f"{where}.dist_cfg", check, name="init_dist")
        # A process group that exists already has its own, which need not be among those known.
        given = _OF_GROUP if mm_dist.is_distributed() else ()
        asked = {name: value for name, value in dist_cfg.items() if name not in given}
        _ask(check, asked, f"{where}.dist_cfg", mm_dist.MMDistError)
    if env.get("npu_cfg") is not None:
        import mm_npu  # noqa: PLC0415 - few have an NPU

        read = mm_npu.read_npu_switches
        check_keys(env["npu_cfg"], f"{where}.npu_cfg", read, name="set_npu_switches")
        _ask(read, env["npu_cfg"], f"{where}.npu_cfg", mm_npu.MMNpuError)


def check_randomness(cfg: Any, where: str) -> None:
    """Check ``randomness``; ``None`` is an empty one.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
    """
    if cfg is None:
        return
    check_known(cfg, where, _RANDOMNESS_KEYS)
    for name in ("diff_rank_seed", "deterministic"):
        check_flag(cfg, name, where)
    seed = cfg.get("seed")
    # torch's generators take 64 bits; the epoch and the process are added to it.
    is_integer = isinstance(seed, int) and not isinstance(seed, bool)
    if seed is not None and not (is_integer and 0 <= seed < 2**63):
        raise ConfigError(
            f"{where}.seed: an integer from 0 to 2**63 - 1 or None is needed, got {seed!r}."
        )


def _check_mp_cfg(cfg: Any, where: str) -> None:
    if cfg is None:
        return
    check_known(need_mapping(cfg, where), where, ("mp_start_method", "opencv_num_threads"))
    method, methods = cfg.get("mp_start_method"), multiprocessing.get_all_start_methods()
    if method is not None and method not in methods:
        raise ConfigError(
            f"{where}.mp_start_method: {method!r} was given; there are {', '.join(methods)}."
        )
    check_integer(cfg, "opencv_num_threads", where)


def _ask(
    check: Callable[..., Any], arguments: Mapping[str, Any], where: str, kind: type[Exception]
) -> None:
    """Let the package that reads a dict check its values, and prefix its error with the path."""
    try:
        check(**arguments)
    except kind as error:
        # It begins with the argument's name.
        name = next((f".{one}" for one in arguments if re.match(rf"{one}\b", str(error))), "")
        raise ConfigError(f"{where}{name}: {error}") from error
