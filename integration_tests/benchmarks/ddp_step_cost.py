"""What MMDistributedDataParallel adds to a step of torch's DistributedDataParallel.

Starts two gloo ranks by itself, and lets three wrappers of equal models take turns in one run:

* ``A`` and ``A'``: torch's wrapper, twice. Their difference is what the machine's noise makes of
  no difference at all.
* ``B``: MMDistributedDataParallel.

Once forward and backward alone, once a whole training step: ``train_step`` of ours against the
same calls written by hand around torch's.

The three take turns, in an order that is drawn anew for each turn: what else the machine does, and
who ran before, meets them alike. In its turn one takes some steps in a row, as a training loop
does; the first of them, which find the caches as another left them, do not count, of the others the
median does. Each round builds the three anew, in an order that is drawn, too: where in memory they
lie counts for microseconds. A sample is the median over the turns of a round of the difference to
``A`` in the same turn; the table shows the median over rounds, with the quartiles. Times of the
thread's processor (``cpu``) leave out the waiting for the other rank; of these a further line
compares the first deciles: turns that nothing has disturbed.

Run: ``python ddp_step_cost.py [--rounds 30] [--turns 20] [--json FILE]``. It prints, and asserts
nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import gc
import json
import os
import platform
import random
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_dist import MMDistributedDataParallel

_NAMES = ("A", "A'", "B")
_WARM_UP_TURNS = 1  # past the first steps, in which buckets are rebuilt
_STEPS_PER_TURN = 15
_COLD_STEPS = 5
_MODEL = "MLP 32-64-64-64-10, batch 16"


class Model(nn.Module):
    """A small model in the shape that the training loops know: backbone, neck, head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.neck = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def data_preprocessor(self, data, training):  # noqa: ARG002 (the loops' signature)
        return data

    def forward(self, inputs, targets, mode):  # noqa: ARG002
        outputs = self.head(self.neck(self.backbone(inputs)))
        return {"loss": nn.functional.cross_entropy(outputs, targets)}

    def parse_losses(self, losses):
        loss = losses["loss"]
        return loss, {"loss": loss.detach()}


class Optim:
    """As little as an optimizer wrapper can be."""

    def __init__(self, model) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def optim_context(self, model):  # noqa: ARG002
        return contextlib.nullcontext()

    def update_params(self, loss) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def forward_backward(wrapper, data, optim) -> None:
    wrapper(**data, mode="loss")["loss"].backward()
    optim.optimizer.zero_grad()


def step_by_hand(wrapper, data, optim):
    with optim.optim_context(wrapper):
        batch = wrapper.module.data_preprocessor(data, True)  # noqa: FBT003
        losses = wrapper(**batch, mode="loss")
    loss, log_vars = wrapper.module.parse_losses(losses)
    optim.update_params(loss)
    return log_vars


def own_step(wrapper, data, optim):
    return wrapper.train_step(data, optim)


def time_turn(step, wrapper, data, optim):
    """Return the time of one step in microseconds, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(_STEPS_PER_TURN):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        step(wrapper, data, optim)
        end_cpu, end = time.thread_time(), time.perf_counter()
        clock.append((end - begin) * 1e6)
        processor.append((end_cpu - begin_cpu) * 1e6)
    return tuple(statistics.median(times[_COLD_STEPS:]) for times in (clock, processor))


def build_candidates(names):
    built = {}
    for name in names:
        torch.manual_seed(0)
        if name.startswith("A"):
            wrapper = DistributedDataParallel(Model())
        else:
            wrapper = MMDistributedDataParallel(Model())
        built[name] = wrapper, Optim(wrapper)
    return built


def choose_steps(*, is_whole_step):
    if not is_whole_step:
        return dict.fromkeys(_NAMES, forward_backward)
    return {name: own_step if name.startswith("B") else step_by_hand for name in _NAMES}


def measure_round(steps, data, num_turns, shuffle):
    """Return for each turn the times of one step of every candidate."""
    names = list(_NAMES)
    shuffle(names)
    candidates = build_candidates(names)
    turns = []
    for _ in range(_WARM_UP_TURNS + num_turns):
        times = {}
        shuffle(names)
        for name in names:
            wrapper, optim = candidates[name]
            times[name] = time_turn(steps[name], wrapper, data, optim)
        turns.append(times)
    del candidates, wrapper, optim
    gc.collect()
    return turns[_WARM_UP_TURNS:]


def compare(rounds, column):
    """Return microseconds per step of ``A``, and what the others add to it."""
    base = statistics.median(turn["A"][column] for turns in rounds for turn in turns)
    found = {"A": {"median": base}}
    for name in _NAMES[1:]:
        added = [
            statistics.median(turn[name][column] - turn["A"][column] for turn in turns)
            for turns in rounds
        ]
        low, middle, high = statistics.quantiles(added, n=4)
        found[name] = {"added": middle, "quartiles": [low, high], "ratio": 1 + middle / base}
    return found


def compare_undisturbed(rounds, column):
    """Return the first decile of ``A``'s steps, and what it is more for the others."""
    deciles = {
        name: statistics.quantiles((t[name][column] for turns in rounds for t in turns), n=10)[0]
        for name in _NAMES
    }
    base = deciles.pop("A")
    rows = {n: {"added": value - base, "ratio": value / base} for n, value in deciles.items()}
    return {"A": {"decile": base}, **rows}


def join(rank, store):
    """Join the group of two, and return the batch of this rank; nothing is collected from here."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    gc.collect()
    gc.disable()
    generator = torch.Generator().manual_seed(rank)
    return {
        "inputs": torch.randn(16, 32, generator=generator),
        "targets": torch.randint(10, (16,), generator=generator),
    }


def run_rank(rank, store, arguments):
    data = join(rank, store)
    shuffle = random.Random(0).shuffle  # noqa: S311 (the same on both ranks)
    report = {}
    for title, is_whole_step in (("forward and backward", False), ("training step", True)):
        steps = choose_steps(is_whole_step=is_whole_step)
        samples = [
            measure_round(steps, data, arguments.turns, shuffle) for _ in range(arguments.rounds)
        ]
        report[title] = {"clock": compare(samples, 0), "cpu": compare(samples, 1)}
        report[title]["decile"] = compare_undisturbed(samples, 1)
    if rank == 0:
        show(report, arguments)
    dist.barrier()
    time.sleep(0.05)  # gloo's threads still release objects
    dist.destroy_process_group()


def show(report, arguments) -> None:
    machine = read_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{_MODEL}; 2 gloo ranks, 1 thread each; {arguments.rounds} rounds of {arguments.turns} "
        f"turns of {_STEPS_PER_TURN} steps; microseconds per step: median over rounds "
        "[quartiles], and ratio"
    )
    print(f"{'':20} {'':6} {'A':>8} {'A-prime - A':>30} {'B - A':>30} {'B- - A':>30}")
    for title, columns in report.items():
        for column, found in columns.items():
            base = found["A"]
            cells = [f"{base.get('median', base.get('decile')):8.1f}"]
            cells += [describe(found[name]) for name in _NAMES[1:]]
            print(f"{title:20} {column:6} " + " ".join(cells))
    if arguments.json:
        settings = {"model": _MODEL, "rounds": arguments.rounds, "turns": arguments.turns}
        content = {**machine, **settings, "unit": "microseconds per step", "results": report}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


def describe(row):
    low, high = row.get("quartiles", (None, None))
    spread = "" if low is None else f"[{low:+6.1f}, {high:+6.1f}]"
    return f"{row['added']:+7.1f} {spread:16} x{row['ratio']:.4f}"


def read_machine():
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "mm-dist": mm_dist.__version__,
        "processor": f"{read_processor_name()}, {os.cpu_count()} cores",
        "load average": round(os.getloadavg()[0], 1),
    }


def read_processor_name():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds, a sample each")
    parser.add_argument("--turns", type=int, default=20, help="turns in a round")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run_rank, (Path(directory) / "store", arguments), nprocs=2)


if __name__ == "__main__":
    main()
