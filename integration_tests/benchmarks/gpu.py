"""What a training step takes on a GPU: by hand, with the Runner and with other trainers.

A transformer of the sizes of GPT-2 small and a ResNet-18 on made-up data, from workers and pinned
memory: in float32, in mixed precision, and compiled. All use torch's fused AdamW, write their loss
every 50 steps and save nothing. Every sample is a process of its own, in an order that is drawn
anew in each round. Of the second half of its steps the median over strides counts, by the device's
own clock. The table also has samples per second, the most memory that torch took, seconds from the
trainer's start to the end of the first step, and how often a step makes the host wait for the
device, as CUDA's debug mode tells it.

A trainer that is not installed is left out, and named. Peers differ by a percent or two from run
to run: compare within one.

Run: ``python gpu.py [--rounds 3] [--steps 200] [--models transformer,convnet] [--only
mm_runner,...] [--json FILE]``. It needs a GPU; ``--device cpu --small`` tries it without one. It
prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import dataclasses
import importlib
import importlib.metadata
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
# Name of the module in device_trainers/, and of the distribution that it needs.
TRAINERS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
}
MODELS = ("transformer", "convnet")
# Precision, and whether the model is compiled.
WAYS = (("float32", False), ("bfloat16", False), ("float16", False), ("bfloat16", True))
_STRIDE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="samples of each trainer")
    parser.add_argument("--steps", type=int, default=200, help="steps of a sample, at least 40")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--only", help="names of trainers, separated by commas")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="sizes that a processor can train")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--sample", nargs=2, metavar=("TRAINER", "TASK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        print(json.dumps(take_sample(arguments.sample[0], json.loads(arguments.sample[1]))))
        return
    if arguments.steps < 8 * _STRIDE:
        sys.exit(f"--steps {arguments.steps} was asked for; at least {8 * _STRIDE} are needed.")
    names = choose(arguments.only, TRAINERS, "trainer")
    names = [name for name in dict.fromkeys([BASE, *names]) if is_installed(name)]
    if arguments.device == "cuda" and not has_gpu():
        print("No GPU was found, nothing is measured; --device cpu --small tries the benchmark.")
        return
    machine = describe_machine(arguments.device)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    report = {}
    for model in choose(arguments.models, MODELS, "model"):
        for precision, compiled in WAYS:
            title = f"{model}, {precision}{', compiled' if compiled else ''}"
            order = {
                "model": model,
                "precision": precision,
                "compiled": compiled,
                "device": arguments.device,
                "steps": arguments.steps,
                "small": arguments.small,
            }
            report[title] = compare(measure(names, order, arguments.rounds))
            show(title, report[title])
    if arguments.json:
        content = {**machine, "results": report}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n")


def choose(wanted, known, what):
    chosen = wanted.split(",") if wanted else list(known)
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        sys.exit(f"No {what} {', '.join(unknown)}; there are: {', '.join(known)}.")
    return chosen


def is_installed(name):
    try:
        print(f"{name}: {TRAINERS[name]} {importlib.metadata.version(TRAINERS[name])}")
    except importlib.metadata.PackageNotFoundError:
        print(f"{name}: left out, {TRAINERS[name]} is not installed")
        return False
    return True


def has_gpu():
    import torch  # noqa: PLC0415 (of a sample's process only the trainer counts)

    return torch.cuda.is_available()


def describe_machine(device):
    import torch  # noqa: PLC0415 (see above)

    name = torch.cuda.get_device_name() if device == "cuda" else "processor"
    return {
        "device": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
    }


def measure(names, order, num_rounds):
    """Return the samples of each trainer."""
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    samples = {name: [] for name in names}
    for _ in range(num_rounds):
        turn = list(names)
        shuffle(turn)
        for name in turn:
            command = [sys.executable, __file__, "--sample", name, json.dumps(order)]
            # Else the first one to compile would do so for all.
            with tempfile.TemporaryDirectory() as empty:
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": empty}
                done = subprocess.run(
                    command, check=False, capture_output=True, text=True, env=environment
                )
            if done.returncode != 0:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            samples[name].append(json.loads(done.stdout.splitlines()[-1]))
    return samples


def take_sample(name, order):
    """Train in this process; what the trainer prints goes to standard error."""
    import torch  # noqa: PLC0415 (the comparing process need not hold a device)

    # Not on the path by its name: a module there is called as the trainer itself.
    module = importlib.import_module(f"device_trainers.{name}")
    task_module = importlib.import_module("device_trainers.task")
    task = task_module.Task(**order)
    clock = task_module.StepClock(task, _STRIDE)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        module.train(task, clock, Path(directory))
    on_device = task.device == "cuda"
    return {
        "milliseconds": statistics.median(clock.milliseconds()),
        "batch": task_module.batch_size(task),
        "mebibytes": torch.cuda.max_memory_reserved() / 2**20 if on_device else None,
        "first step, s": clock.first_step_s,
        "waits per step": clock.waits_per_step(),
        "task": dataclasses.asdict(task),
    }


def compare(samples):
    """Return per trainer the median of its samples, and the ratio to the loop by hand."""
    base = statistics.median(row["milliseconds"] for row in samples[BASE])
    found = {}
    for name, rows in samples.items():
        times = [row["milliseconds"] for row in rows]
        middle = statistics.median(times)
        found[name] = {
            "milliseconds": middle,
            "lowest": min(times),
            "highest": max(times),
            "ratio": middle / base,
            "samples per second": rows[0]["batch"] / middle * 1e3,
            **{
                column: None
                if rows[0][column] is None
                else statistics.median(row[column] for row in rows)
                for column in ("mebibytes", "first step, s", "waits per step")
            },
        }
    return found


def show(title, found) -> None:
    print(f"{title}: milliseconds per step [lowest, highest]")
    for name, row in found.items():
        cells = [
            f"{row['milliseconds']:8.2f} [{row['lowest']:8.2f}, {row['highest']:8.2f}]",
            f"x{row['ratio']:.3f}",
            f"{row['samples per second']:9.1f} samples/s",
            f"first step {row['first step, s']:5.1f} s",
        ]
        if row["mebibytes"] is not None:
            cells += [f"{row['mebibytes']:7.0f} MiB", f"{row['waits per step']:.2f} waits/step"]
        print(f"  {name:17} " + "  ".join(cells))


if __name__ == "__main__":
    main()
