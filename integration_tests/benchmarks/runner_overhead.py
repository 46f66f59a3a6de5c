"""What a step costs with the Runner, with other trainers, and with a loop by hand.

The same tiny model, data and optimizer for all, on the CPU with one thread; each writes its loss
every 50 steps, trainers through their default hooks. Every sample is a process of its own, and the
order is drawn anew in each round. In a process, time is noted at every hundredth step inside of the
model; a sample is the median over the hundreds between steps 500 and 1000, and over the last 5000
of a long run: what grows with the run's length shows as their difference.

A trainer that is not installed is left out, and named.

Run: ``python runner_overhead.py [--rounds 5] [--steps 100000] [--only mm_runner,...] [--json
FILE]``. It prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BASE = "by_hand"
# Name of the module in trainers/, and of the distribution that it needs.
TRAINERS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
    "mmengine": "mmengine",
    "transformers": "transformers",
}
_SHORT_STEPS, _EARLY_STEPS, _LATE_STEPS = 1000, 500, 5000
_QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="samples of each trainer")
    parser.add_argument("--steps", type=int, default=100_000, help="length of the long run")
    parser.add_argument("--only", help="names of trainers, separated by commas")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--sample", nargs=2, metavar=("TRAINER", "STEPS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        name, steps = arguments.sample
        print(json.dumps(take_sample(name, int(steps))))
        return
    names = choose_trainers(arguments.only)
    report = {
        f"{steps} steps": compare(measure(names, steps, arguments.rounds))
        for steps in (_SHORT_STEPS, arguments.steps)
    }
    show(report, arguments)


def choose_trainers(only):
    wanted = [BASE, *only.split(",")] if only else list(TRAINERS)
    unknown = sorted(set(wanted) - set(TRAINERS))
    if unknown:
        sys.exit(f"No trainer {', '.join(unknown)}; there are: {', '.join(TRAINERS)}.")
    found = []
    for name in dict.fromkeys(wanted):
        try:
            print(f"{name}: {TRAINERS[name]} {importlib.metadata.version(TRAINERS[name])}")
            found.append(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: left out, {TRAINERS[name]} is not installed")
    return found


def measure(names, steps, num_rounds):
    """Return the samples of each trainer: microseconds per step, by the clock and processor."""
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    samples = {name: [] for name in names}
    for _ in range(num_rounds):
        order = list(names)
        shuffle(order)
        for name in order:
            command = [sys.executable, __file__, "--sample", name, str(steps)]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env={**os.environ, **_QUIET}
            )
            if done.returncode != 0:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            samples[name].append(json.loads(done.stdout.splitlines()[-1]))
    return samples


def take_sample(name, steps):
    """Train in this process; what the trainer prints goes to standard error."""
    import torch  # noqa: PLC0415 (the comparing process needs none)

    # Not on the path by its name: a module in trainers/ is called as the trainer itself.
    module = importlib.import_module(f"trainers.{name}")
    task = importlib.import_module("trainers.task")
    torch.set_num_threads(1)
    clock = task.StepClock()
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        module.train(steps, clock, Path(directory))
    if len(clock.wall) != steps // clock.STRIDE:
        sys.exit(f"{name} ran {len(clock.wall)} hundreds of steps, {steps} steps were asked for.")
    first = _EARLY_STEPS if steps == _SHORT_STEPS else steps - _LATE_STEPS
    return {
        "clock": per_step(clock.wall, first, clock.STRIDE),
        "cpu": per_step(clock.processor, first, clock.STRIDE),
    }


def per_step(times, first, stride):
    times = times[first // stride :]
    return statistics.median(
        (end - begin) * 1e6 / stride for begin, end in itertools.pairwise(times)
    )


def compare(samples):
    """Return per trainer the median of its samples, and what it adds to the loop by hand."""
    found = {}
    for name, rows in samples.items():
        found[name] = {}
        for column in ("clock", "cpu"):
            base = statistics.median(row[column] for row in samples[BASE])
            middle = statistics.median(row[column] for row in rows)
            found[name][column] = {
                "median": middle,
                "lowest": min(row[column] for row in rows),
                "highest": max(row[column] for row in rows),
                "added": middle - base,
                "ratio": middle / base,
            }
    return found


def show(report, arguments) -> None:
    machine = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"microseconds per step, median of {arguments.rounds} processes [lowest, highest]")
    for title, found in report.items():
        print(f"{title}:")
        for name, columns in found.items():
            cells = [
                f"{column} {row['median']:7.1f} [{row['lowest']:7.1f}, {row['highest']:7.1f}] "
                f"{row['added']:+7.1f} x{row['ratio']:.2f}"
                for column, row in columns.items()
            ]
            print(f"  {name:17} " + "   ".join(cells))
    if arguments.json:
        content = {**machine, "unit": "microseconds per step", "results": report}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
