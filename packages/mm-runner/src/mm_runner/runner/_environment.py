"""The process of a run: its place among the others, its switches and its random numbers."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import torch

import mm_dist

from ._checks import checked_mapping

if TYPE_CHECKING:
    import logging

__all__ = ["raise_open_file_limit", "seed_everything", "set_up_process", "switch_deterministic"]

_DEFAULT_OPEN_FILES = 4096


def set_up_process(launcher: str, env_cfg: Any) -> mm_dist.DistInfo:
    """Join the other processes, and set the switches of ``env_cfg``.

    Args:
        launcher: ``"auto"``, ``"none"``, ``"pytorch"``, ``"slurm"``, ``"mpi"`` or an installed one.
        env_cfg: ``cudnn_benchmark``, ``mp_cfg``, ``dist_cfg`` (arguments of
            :func:`mm_dist.init_dist`), ``resource_limit``.

    Raises:
        ConfigError: If a key is unknown.
        mm_dist.LaunchError: If the launcher's variables are missing.
    """
    env = checked_mapping(
        env_cfg, "env_cfg", ("cudnn_benchmark", "mp_cfg", "dist_cfg", "resource_limit")
    )
    mp_cfg = checked_mapping(
        env.get("mp_cfg"), "env_cfg.mp_cfg", ("mp_start_method", "opencv_num_threads")
    )
    if env.get("cudnn_benchmark"):
        torch.backends.cudnn.benchmark = True
    if "mp_start_method" in mp_cfg:
        torch.multiprocessing.set_start_method(mp_cfg["mp_start_method"], force=True)
    opencv = sys.modules.get("cv2")
    if "opencv_num_threads" in mp_cfg and opencv is not None:
        opencv.setNumThreads(mp_cfg["opencv_num_threads"])
    raise_open_file_limit(env.get("resource_limit", _DEFAULT_OPEN_FILES))
    dist_cfg = checked_mapping(
        env.get("dist_cfg"),
        "env_cfg.dist_cfg",
        ("backend", "timeout", "port", "init_backend", "device_type"),
    )
    return mm_dist.init_dist(launcher, **dist_cfg)


def raise_open_file_limit(limit: int) -> None:
    """Let this process open ``limit`` files, as far as the system allows: workers need many."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(limit, soft) if hard == resource.RLIM_INFINITY else min(max(limit, soft), hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def seed_everything(seed: int) -> None:
    """Seed Python's, torch's, every device's and (if imported) NumPy's generators."""
    random.seed(seed)
    torch.manual_seed(seed)  # the devices' generators too
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def switch_deterministic(logger: logging.Logger) -> None:
    """Make torch choose deterministic algorithms, and fail where there is none."""
    if torch.backends.cudnn.benchmark:
        logger.warning("randomness.deterministic was asked for: cudnn_benchmark is switched off.")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's signature
