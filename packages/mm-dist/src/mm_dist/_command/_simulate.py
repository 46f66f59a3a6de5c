"""``mm-dist simulate``: time and memory of one rank of a job that is larger than this machine."""

import argparse
import importlib
import os
import pkgutil
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
from mm_dist._command._output import format_table, print_text
from mm_dist._errors import ConfigError, TorchVersionError
from mm_dist._info import barrier
from mm_dist._launchers._selection import select_launcher
from mm_dist._process_group._current import current_info
from mm_dist._wrappers._comm_hooks import no_communication
from mm_dist._wrappers.ddp import MMDistributedDataParallel

_LABEL = "simulated: fake process group, no other ranks, no rendezvous, no communication"
_FAKE_GROUP = "torch.testing._internal.distributed.fake_pg"
_WIDTH, _RANKS_PER_MACHINE = 256, 8


def run(options: argparse.Namespace) -> int:
    """Start one rank, and print what each step took."""
    world_size, rank = options.world_size, options.rank
    if not 0 <= rank < world_size:
        raise ConfigError(f"--rank={rank} must be at least 0, and below --world-size={world_size}.")
    local_world_size = min(_RANKS_PER_MACHINE, world_size)
    seconds_in_all, cells = 0.0, [["before", "0.0", f"{_resident_mib():.1f}"]]
    start = time.perf_counter()
    for name in _run_steps(rank, world_size, local_world_size, options.model):
        seconds, memory = time.perf_counter() - start, _resident_mib()
        cells.append([name, f"{seconds * 1e3:.1f}", f"{memory:.1f}"])
        seconds_in_all += seconds
        start = time.perf_counter()
    print_text(
        f"rank {rank} of {world_size}, {local_world_size} per machine ({_LABEL})\n\n"
        f"{format_table(['step', 'ms', 'memory MiB'], cells)}\n\n"
        f"start: {seconds_in_all:.2f} s, {max(float(row[2]) for row in cells)} MiB"
    )
    return 0


def _run_steps(
    rank: int, world_size: int, local_world_size: int, model_path: str | None
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
        if inputs is not None:
            wrapped(*inputs).sum().backward()
            yield "one step"
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    yield "leave"


def _make_small_model() -> tuple[nn.Module, tuple[torch.Tensor]]:
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(4)]
    return nn.Sequential(*layers), (torch.ones(2, _WIDTH),)


def _import_factory(path: str | None) -> Callable[[], Any]:
    """Return the function that ``module:name`` means; the small model's for ``None``."""
    if path is None:
        return _make_small_model
    # As python -m does: a model in the working directory can be named.
    sys.path.insert(0, str(Path.cwd()))
    try:
        factory: Callable[[], Any] = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--model={path} cannot be found: {error}; write MODULE:FACTORY, where MODULE can be "
            "imported from here."
        ) from error
    return factory


def _resident_mib() -> float:
    """Return the memory of this process that is in use; 0 where the system does not report it."""
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0
