"""Two gloo ranks on this machine, in which systems take turns at the same training step.

A part gives ``build(system, accumulation)``, which wraps an equal model anew and returns a function
that trains one optimizer step on a list of micro-batches, and one that returns the weights.
"""

import contextlib
import gc
import json
import os
import random
import socket
import statistics
import struct
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

_STEPS_PER_TURN = 15
_COLD_STEPS = 5  # of a turn: they find the caches as another system left them
_WIDTH, _BATCH_SIZE = 128, 32


class Model(nn.Module):
    """A small model in the shape that the training loops know."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        block = (nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH), nn.ReLU())
        self.blocks = nn.Sequential(nn.Sequential(*block[:2]), nn.Sequential(*block[2:]))
        self.head = nn.Linear(_WIDTH, 10)

    def data_preprocessor(self, data, training):  # noqa: ARG002 (the loops' signature)
        return data

    def forward(self, inputs, targets, mode="loss"):  # noqa: ARG002
        return {"loss": nn.functional.cross_entropy(self.head(self.blocks(inputs)), targets)}

    def parse_losses(self, losses):
        return losses["loss"], {"loss": losses["loss"].detach()}


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def measure(build, systems, quick, folder):
    mp.spawn(_run_rank, (build, systems, 5 if quick else 40, folder), nprocs=2)
    return json.loads((folder / "values.json").read_text())


def _run_rank(rank, build, systems, num_turns, folder):
    sys.stdout = sys.stderr
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    # Peers read them; the last one lets Fabric take the ranks as they are.
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "two_ranks"}
    os.environ.update({name: str(value) for name, value in place.items()})
    store = dist.FileStore(str(folder / "store"), 2)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    generator = torch.Generator().manual_seed(rank)
    batches = [
        {
            "inputs": torch.randn(_BATCH_SIZE, _WIDTH, generator=generator),
            "targets": torch.randint(10, (_BATCH_SIZE,), generator=generator),
        }
        for _ in range(4)
    ]
    values = {system: {} for system in systems}
    for label, found in (
        *_time_steps(build, systems, batches[:1], num_turns).items(),
        *((_name_bytes(n), _count_bytes(build, systems, batches[:n])) for n in (1, 4)),
    ):
        for system, value in found.items():
            values[system][label] = value
    if rank == 0:
        (folder / "values.json").write_text(json.dumps(values))
    dist.barrier()
    time.sleep(0.05)  # gloo's threads still release objects
    dist.destroy_process_group()


def _time_steps(build, systems, batches, num_turns):
    """Return microseconds of a step, by the clock and of the thread's processor.

    What else the machine does meets the systems of one turn alike: a value is the base's median
    times the median over turns of the ratio to the base in the same turn.
    """
    order = list(systems)
    shuffle = random.Random(0).shuffle  # noqa: S311 (the same on both ranks)
    built = {system: build(system, 1) for system in order}
    gc.collect()
    gc.disable()
    turns = []
    for _ in range(1 + num_turns):
        shuffle(order)
        turns.append({system: _time_turn(built[system][0], batches) for system in order})
    gc.enable()
    _check_equal({system: weights() for system, (_, weights) in built.items()})
    del turns[0]  # in which buckets are rebuilt
    values = {}
    for column, label in enumerate(("microseconds of a step", "processor's microseconds")):
        base = statistics.median(turn[systems[0]][column] for turn in turns)
        values[label] = {
            x: base
            * statistics.median(turn[x][column] / turn[systems[0]][column] for turn in turns)
            for x in systems
        }
    return values


def _time_turn(step, batches):
    clock, processor = [], []
    for _ in range(_STEPS_PER_TURN):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        step(batches)
        end_cpu, end = time.thread_time(), time.perf_counter()
        clock.append((end - begin) * 1e6)
        processor.append((end_cpu - begin_cpu) * 1e6)
    return [statistics.median(times[_COLD_STEPS:]) for times in (clock, processor)]


def _name_bytes(accumulation):
    return f"bytes received in an optimizer step, accumulation {accumulation}"


def _count_bytes(build, systems, batches, num_steps=4):
    """Return the bytes that a rank receives in an optimizer step, mean over the ranks."""
    found, weights = {}, {}
    for system in systems:
        step, get_weights = build(system, len(batches))
        for _ in range(3):
            step(batches)
        dist.barrier()
        begin = _read_bytes()
        for _ in range(num_steps):
            step(batches)
        count = torch.tensor(float(_read_bytes() - begin))
        dist.all_reduce(count)
        found[system] = count.item() / 2 / num_steps
        weights[system] = get_weights()
    _check_equal(weights)
    # A system's own count of nothing would be that of a kernel that does not tell.
    return found if min(found.values()) > 0 else {}


def _read_bytes():
    """Return what the kernel says that all TCP connections of this process have received."""
    total = 0
    for path in Path("/proc/self/fd").glob("*"):  # empty where the system is not Linux
        with contextlib.suppress(OSError):
            if path.readlink().name.startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as one:
                    info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                    total += struct.unpack_from("Q", info, 128)[0]  # tcpi_bytes_received
    return total


def _check_equal(weights):
    """Check that all systems have done the same work."""
    base = next(iter(weights.values()))
    for system, own in weights.items():
        torch.testing.assert_close(own, base, msg=lambda m, s=system: f"{s} differs: {m}")
