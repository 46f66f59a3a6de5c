"""The process of a run: its rank, its switches and its random numbers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

import mm_dist
from mm_runner.validation import check_environment, check_randomness

if TYPE_CHECKING:
    from ._runner import Runner

_DEFAULT_OPEN_FILES = 4096


def set_up_process(launcher: str | None, env_cfg: Mapping[str, Any] | None) -> mm_dist.DistInfo:
    """Join the other processes, and set the switches of ``env_cfg``.

    Args:
        launcher: As the Runner's; ``None`` is ``"auto"``.
        env_cfg: ``cudnn_benchmark``, ``mp_cfg``, ``dist_cfg`` (arguments of
            :func:`mm_dist.init_dist`), ``npu_cfg`` (of :func:`mm_npu.set_npu_switches`; of no
            effect without an NPU), ``resource_limit``.

    Raises:
        ConfigError: If a key is unknown, or a value cannot be used.
        mm_dist.LaunchError: If the launcher's variables are missing.
    """
    check_environment(env_cfg, "env_cfg")  # not all who come here have checked their configuration
    env = env_cfg or {}
    mp_cfg, npu_cfg = env.get("mp_cfg") or {}, env.get("npu_cfg") or {}
    if env.get("cudnn_benchmark"):
        torch.backends.cudnn.benchmark = True
    if mp_cfg.get("mp_start_method") is not None:
        torch.multiprocessing.set_start_method(mp_cfg["mp_start_method"], force=True)
    opencv = sys.modules.get("cv2")
    num_threads = mp_cfg.get("opencv_num_threads")
    if num_threads is not None and opencv is not None:
        opencv.setNumThreads(num_threads)
    open_files = env.get("resource_limit")
    if sys.platform != "win32":
        import resource  # noqa: PLC0415 - not on Windows

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Workers need many files, as far as the system allows them.
        wanted = max(_DEFAULT_OPEN_FILES if open_files is None else open_files, soft)
        wanted = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    chosen = "auto" if launcher is None else launcher
    info = mm_dist.init_dist(chosen, **(env.get("dist_cfg") or {}))
    if npu_cfg or info.device.type == "npu":
        from mm_npu import set_npu_switches  # noqa: PLC0415 - few have an NPU

        set_npu_switches(**npu_cfg)  # now that the device is set: it may open a context there
    return info


def fix_cublas_workspace(randomness: Any) -> None:
    """Fix the size of cuBLAS workspaces if ``randomness`` asks for determinism.

    Without them torch refuses matrix products on CUDA when only deterministic algorithms may be
    used. cuBLAS reads the variable when it starts, so this comes before anything touches the
    device. What the user has set stays.
    """
    if (randomness or {}).get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def seed_everything(seed: int) -> None:
    """Seed Python's, torch's, every device's and (if imported) NumPy's generators."""
    random.seed(seed)
    torch.manual_seed(seed)  # the devices' generators too
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def seed_run(
    run: Runner,
    seed: int | None,
    diff_rank_seed: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
    deterministic: bool = False,  # noqa: FBT001, FBT002
) -> None:
    """Seed every generator of this process, and switch to deterministic algorithms if asked.

    Args:
        run: The run.
        seed: That of all processes; ``None`` draws one.
        diff_rank_seed: Whether each process adds its rank to it; that of its data, where several
            processes see the same.
        deterministic: Whether to allow deterministic algorithms only.
    """
    check_randomness({"seed": seed}, "randomness")
    fix_cublas_workspace({"deterministic": deterministic})
    run.has_own_seed, run.diff_rank_seed = seed is not None, bool(diff_rank_seed)
    run.deterministic = bool(deterministic)
    use_seed(run, mm_dist.sync_random_seed() if seed is None else seed)
    if run.deterministic:
        if torch.backends.cudnn.benchmark:
            run.logger.warning("randomness.deterministic was given: cudnn_benchmark is off.")
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True)  # noqa: FBT003 - torch's signature


def use_seed(run: Runner, seed: int) -> None:
    """Make ``seed`` that of the run, and seed the generators of this process."""
    run.seed = seed
    seed_everything(seed + (run.data_rank if run.diff_rank_seed else 0))
    run.loader_generator.manual_seed(seed)
