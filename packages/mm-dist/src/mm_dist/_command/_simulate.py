"""``mm-dist simulate``: time and memory of one rank of a job that is larger than this machine."""

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from mm_dist._collectives._copy import all_gather
from mm_dist._collectives._objects import all_gather_object
from mm_dist._collectives._reduction import all_reduce, all_reduce_dict
from mm_dist._command._output import format_table, print_result
from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._info import barrier
from mm_dist._launchers._selection import select_launcher
from mm_dist._process_group._current import current_info
from mm_dist._rendezvous._variables import restore_variables
from mm_dist._wrappers._comm_hooks import no_communication
from mm_dist._wrappers.ddp import MMDistributedDataParallel
from mm_dist._wrappers.fsdp import MMFullyShardedDataParallel

_LABEL = "simulated: fake process group, no other ranks, no rendezvous, no communication"
_FAKE_GROUP = "torch.testing._internal.distributed.fake_pg"
_WIDTH, _MIB, _RANKS_PER_MACHINE = 256, 2**20, 8


def run(options: argparse.Namespace) -> int:
    """Start one rank, and print what each step took."""
    world_size, rank = options.world_size, options.rank
    if world_size < 1:
        raise ConfigError(f"--world-size={world_size} must be at least 1.")
    if not 0 <= rank < world_size:
        raise ConfigError(f"--rank={rank} is none of {world_size}; ranks count from 0.")
    local_world_size = min(_RANKS_PER_MACHINE, world_size)
    rows: list[dict[str, Any]] = [
        {"step": "before", "seconds": 0.0, "resident_bytes": _resident_bytes()}
    ]
    start = time.perf_counter()
    place = (rank, world_size, local_world_size)
    for name in _run_steps(*place, options.model, is_sharding=options.shard):
        seconds = time.perf_counter() - start
        rows.append({"step": name, "seconds": seconds, "resident_bytes": _resident_bytes()})
        start = time.perf_counter()
    result: dict[str, Any] = {
        "what": _LABEL,
        "world_size": world_size,
        "rank": rank,
        "local_world_size": local_world_size,
        "seconds": sum(row["seconds"] for row in rows),
        "resident_bytes": max(row["resident_bytes"] for row in rows),
        "steps": rows,
    }
    cells = [
        [r["step"], f"{r['seconds'] * 1e3:.1f}", f"{r['resident_bytes'] / _MIB:.1f}"] for r in rows
    ]
    text = (
        f"rank {rank} of {world_size}, {local_world_size} per machine ({_LABEL})\n\n"
        f"{format_table(['step', 'ms', 'memory MiB'], cells)}\n\n"
        f"start: {result['seconds']:.2f} s, {result['resident_bytes'] / _MIB:.1f} MiB"
    )
    print_result(result, text, is_json=options.json)
    return 0


def _run_steps(
    rank: int, world_size: int, local_world_size: int, model_path: str | None, *, is_sharding: bool
) -> Iterator[str]:
    """Yield the name of each step of a rank's start when it is done."""
    make_model = _import_factory(model_path)
    try:
        fake = importlib.import_module(_FAKE_GROUP)
    except ImportError as error:
        raise TorchVersionError(
            f"simulate needs torch's fake process group, which torch {torch.__version__} does not "
            "have; upgrade torch to 2.4 or newer."
        ) from error
    node, local_rank = divmod(rank, local_world_size)
    torchrun = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(-(-world_size // local_world_size)),
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
    }
    former = {name: os.environ.get(name) for name in torchrun}
    os.environ.update(torchrun)
    try:
        select_launcher("pytorch", {}).read(torchrun)
        yield "read torchrun's variables"
        dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=world_size)
        yield "join the fake group"
        current_info()
        yield "describe this rank"
        tensor = torch.ones(4)
        barrier()
        all_reduce(tensor)
        all_reduce_dict({"loss": tensor, "accuracy": tensor})
        all_gather(tensor)
        all_gather_object(rank)
        yield "collectives"
        made = make_model()
        model, inputs = made if isinstance(made, tuple) else (made, None)
        yield "build the model"
        wrapped: Any = MMDistributedDataParallel(model)
        # The fake group's all-reduce returns no future for DDP to wait for.
        wrapped.register_comm_hook(None, no_communication)
        yield "wrap it (DDP)"
        _step(wrapped, inputs)
        yield "one step"
        if is_sharding:
            wrapped = MMFullyShardedDataParallel(model)
            yield "shard it (fully_shard)"
            _step(wrapped, inputs)
            yield "one sharded step"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        restore_variables(former)
    yield "leave"


def _step(wrapped: nn.Module, inputs: tuple[Any, ...] | None) -> None:
    if inputs is not None:
        wrapped(*inputs).sum().backward()


def _make_small_model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
    return nn.Sequential(*layers), (torch.ones(2, _WIDTH),)


def _import_factory(path: str | None) -> Callable[[], Any]:
    """Return the function that ``module:name`` means; the small model's for ``None``."""
    if path is None:
        return _make_small_model
    # As python -m does: a model in the working directory can be named.
    sys.path.insert(0, str(Path.cwd()))
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--model={path} cannot be found: {error}; write MODULE:FACTORY, where MODULE can be "
            "imported from here."
        ) from error
    if not callable(found):
        raise ConfigError(f"--model={path} is {found!r}; it must be callable without arguments.")
    factory: Callable[[], Any] = found
    return factory


def _resident_bytes() -> int:
    """Return the memory of this process that is in use; 0 where the system does not report it."""
    with suppress(OSError, ImportError):
        import resource  # noqa: PLC0415 (not on Windows)

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * resource.getpagesize()
    return 0
