"""What is kept, and advised, when a device has no memory left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from mm_runner.optim import computes_in_half, named_wrappers

if TYPE_CHECKING:
    from pathlib import Path

    from mm_runner.runner import Runner

__all__ = ["advise_on_memory", "keep_memory"]

# The newer name, and the one that torch before 2.9 reads.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_ALLOCATOR_OF_NPU = "PYTORCH_NPU_ALLOC_CONF"
_SEGMENTS = "expandable_segments:True"


def keep_memory(device: torch.device, folder: Path, rank: int) -> None:
    """Write what the allocator of a device tells of its memory.

    That is ``memory_rank<N>.txt``, the summary, and where the history of allocations was recorded
    ``memory_rank<N>.pickle``, which https://pytorch.org/memory_viz shows.
    """
    module: Any = getattr(torch, device.type, None)
    if hasattr(module, "memory_summary"):
        text = module.memory_summary(device)
        (folder / f"memory_rank{rank}.txt").write_text(f"{text}\n", encoding="utf-8")
    memory: Any = getattr(module, "memory", None)
    if _has_history(memory):
        path = folder / f"memory_rank{rank}.pickle"
        memory._dump_snapshot(str(path))  # noqa: SLF001 - torch's documented name


def _has_history(memory: Any) -> bool:
    if not hasattr(memory, "_dump_snapshot") or not hasattr(memory, "_snapshot"):
        return False
    traces = memory._snapshot().get("device_traces", ())  # noqa: SLF001 - torch's documented name
    return any(traces)


def advise_on_memory(runner: Runner) -> str:
    """Return what makes a training need less memory, of what this one does not do yet."""
    return f"To need less: {'; '.join(_advice(runner))}."


def _advice(runner: Runner) -> Iterator[str]:
    loader: Any = getattr(runner.train_loop, "dataloader", None)
    size = getattr(loader, "batch_size", None)
    wrappers = list(named_wrappers(runner.optim_wrapper).values())
    if isinstance(size, int) and size > 1:
        counts = getattr(wrappers[0], "accumulative_counts", 1) if wrappers else 1
        smaller = max(size // 2, 1)
        yield (
            f"train_dataloader.batch_size={smaller} with optim_wrapper.accumulative_counts="
            f"{counts * (size // smaller)}, which trains on as many samples per step of the "
            "optimizer (mm-runner find-batch-size finds the largest that fits)"
        )
    if not any(map(computes_in_half, wrappers)):
        yield "mixed precision, optim_wrapper.type='AmpOptimWrapper'"
    if not runner.cfg.get("activation_checkpointing"):
        yield "activation_checkpointing, which computes again in backward what it does not keep"
    if runner.world_size > 1 and "FullySharded" not in type(runner.model).__name__:
        yield "model_wrapper_cfg=dict(type='MMFullyShardedDataParallel'), which shards the model"
    yield from _advice_on_allocator(runner.device.type)


def _advice_on_allocator(device_type: str) -> Iterator[str]:
    if device_type not in ("cuda", "npu"):
        return
    names = _ALLOCATOR if device_type == "cuda" else (_ALLOCATOR_OF_NPU,)
    if not any("expandable_segments" in os.environ.get(name, "") for name in names):
        yield (
            f"the environment variable {names[-1]}={_SEGMENTS}, where much is reserved but not "
            "allocated"
        )
