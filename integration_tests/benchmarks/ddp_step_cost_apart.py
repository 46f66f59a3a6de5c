"""The comparison of ``ddp_step_cost.py``, with a process group of its own for every candidate.

In one process the candidates take turns, and Python's specialised bytecode and attribute caches,
which remember one class, meet four: each pays for the others. A training process has one wrapper.
Here every sample is a pair of fresh processes that step one candidate only; the candidates' order
is drawn anew in each round, so that what else the machine does meets them alike. A sample is the
lower quartile over the steps of each of several models, and of these the median.

Run: ``python ddp_step_cost_apart.py [--rounds 20] [--json FILE]``. It prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import gc
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as mp
from ddp_step_cost import build_candidates, choose_steps, join, read_machine

_NAMES = ("A", "A'", "B", "B-")
_MODELS = 6
_STEPS = 300
_COLD_STEPS = 100


def time_models(name, data):
    """Return microseconds per step of one candidate, by the clock and of the processor."""
    step = choose_steps(is_whole_step=True)[name]
    samples = []
    for _ in range(_MODELS):
        wrapper, optim = build_candidates([name])[name]
        times = []
        for _ in range(_COLD_STEPS + _STEPS):
            begin, begin_cpu = time.perf_counter(), time.thread_time()
            step(wrapper, data, optim)
            end_cpu, end = time.thread_time(), time.perf_counter()
            times.append(((end - begin) * 1e6, (end_cpu - begin_cpu) * 1e6))
        columns = zip(*times[_COLD_STEPS:], strict=True)
        samples.append([statistics.quantiles(column, n=4)[0] for column in columns])
        del wrapper, optim
        gc.collect()
    return [statistics.median(column) for column in zip(*samples, strict=True)]


def run_rank(rank, directory, name):
    data = join(rank, Path(directory, "store"))
    found = time_models(name, data)
    if rank == 0:
        Path(directory, "found.json").write_text(json.dumps(found))
    dist.barrier()
    time.sleep(0.05)  # gloo's threads still release objects
    dist.destroy_process_group()


def measure_alone(name):
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run_rank, (directory, name), nprocs=2)
        return json.loads(Path(directory, "found.json").read_text())


def compare(samples, column):
    """Return microseconds per step of ``A``, and what the others add to its median."""
    base = statistics.median(sample[column] for sample in samples["A"])
    found = {"A": {"median": base}}
    for name in _NAMES[1:]:
        added = [sample[column] - base for sample in samples[name]]
        low, middle, high = statistics.quantiles(added, n=4)
        found[name] = {"added": middle, "quartiles": [low, high], "ratio": 1 + middle / base}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="process groups per candidate")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    samples = {name: [] for name in _NAMES}
    for _ in range(arguments.rounds):
        names = list(_NAMES)
        shuffle(names)
        for name in names:
            samples[name].append(measure_alone(name))
    machine = read_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"training step, 2 gloo ranks, 1 thread each, {arguments.rounds} process groups per "
        f"candidate, {_MODELS} models of {_STEPS} steps in each; microseconds per step: what is "
        "added to the median of A [quartiles over process groups]"
    )
    report = {title: compare(samples, column) for column, title in enumerate(("clock", "cpu"))}
    for title, found in report.items():
        cells = [f"A {found['A']['median']:.1f}"]
        for name in _NAMES[1:]:
            low, high = found[name]["quartiles"]
            cells.append(f"{name} {found[name]['added']:+.1f} [{low:+.1f}, {high:+.1f}]")
        print(f"{title:6} " + "   ".join(cells))
    if arguments.json:
        content = {**machine, "unit": "microseconds per step", "results": report}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
