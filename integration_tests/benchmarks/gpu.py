"""What a training step takes on a GPU: by hand, with the Runner and with other trainers.

ResNet-50 and GPT-2 small on made-up data, from workers and pinned memory: in float32, with TF32, in
mixed precision, and compiled whole and by regions. All use torch's fused AdamW, write their loss
every 50 steps and save nothing; the loop by hand is tuned as an expert would, with batches that are
copied while others are computed. Every sample is a process of its own, in an order that is drawn
anew in each round, with an empty cache of compiled code. It has

* milliseconds of a step by the device's own clock, the median over strides, and what follows from
  it: images or tokens a second, and MFU, the model's operations in a second as a share of what the
  device promises (``--peak`` says it in TFLOP/s where it is not known);
* idle: the part of the step in which no kernel runs, as the profiler tells the kernels' time;
* waits: how often a step makes the host wait for the device, as CUDA's debug mode tells it;
* the most memory that torch took, seconds from the trainer's start to the end of the first step,
  and the loss of the last one, in which trainers agree.

A trainer that cannot be imported is left out, and named. Peers differ by a percent or two from run
to run: compare within one. This file and ``device_trainers/`` are all that it needs besides torch
and what is compared; no network. From the root of the repository::

    PYTHONPATH=$(echo packages/*/src | tr ' ' ':') python3 integration_tests/benchmarks/gpu.py

Options: ``[--rounds 3] [--steps 240] [--models resnet50,gpt2] [--ways bfloat16,bfloat16+whole]
[--only mm_runner,...] [--json FILE]``. It needs a GPU; ``--device cpu --small`` tries it without
one. It asserts nothing about speed.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
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
# Name of the module in device_trainers/, and of what it imports.
TRAINERS = {
    BASE: "torch",
    "mm_runner": "mm_runner",
    "lightning_fabric": "lightning_fabric",
    "accelerate": "accelerate",
}
MODELS = {"resnet50": "images", "gpt2": "tokens"}
# Precision, and after a plus what is compiled.
WAYS = ("float32", "tf32", "float16", "bfloat16", "bfloat16+whole", "bfloat16+regions")
# TFLOP/s by name and precision, dense, as NVIDIA's data sheets have them (for SXM).
_PEAKS = {
    "H200": {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989},
    "H100": {"float32": 67, "tf32": 494.5, "float16": 989, "bfloat16": 989},
    "A100": {"float32": 19.5, "tf32": 156, "float16": 312, "bfloat16": 312},
}
_PACKAGES = ("mm-dist", "mm-amp", "mm-compile", "mm-npu", "mm-runner")
_MIN_STEPS = 120
_MEASURED = ("a second", "idle", "waits", "MiB", "first step, s", "loss")
_COLUMNS = ("ms", "low", "high", "ratio", "MFU", *_MEASURED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="samples of each trainer")
    parser.add_argument("--steps", type=int, default=240, help=f"of a sample, from {_MIN_STEPS} on")
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas")
    parser.add_argument("--ways", default=",".join(WAYS), help="separated by commas")
    parser.add_argument("--only", help="names of trainers, separated by commas; the base stays")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="sizes that a processor can train")
    parser.add_argument("--peak", type=float, help="TFLOP/s of the device, for MFU")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--sample", nargs=2, metavar=("TRAINER", "TASK"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sample:
        print(json.dumps(take_sample(arguments.sample[0], json.loads(arguments.sample[1]))))
        return
    min_steps = _MIN_STEPS if arguments.device == "cuda" else 30
    if arguments.steps < min_steps:
        parser.error(f"--steps {arguments.steps}: at least {min_steps} are needed.")
    models = choose(parser, arguments.models, MODELS)
    ways = choose(parser, arguments.ways, WAYS)
    names = choose(parser, arguments.only, TRAINERS)
    machine = describe_machine(arguments.device)
    if machine is None:
        print("No GPU was found, nothing is measured; --device cpu --small tries the benchmark.")
        return
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    with tempfile.TemporaryDirectory() as folder:
        name_sources(Path(folder))
        names = [name for name in dict.fromkeys([BASE, *names]) if is_installed(name)]
        report = {**machine, "small": arguments.small, "results": {}}
        for model in models:
            for way in ways:
                found = compare(measure(names, model, way, arguments), machine, arguments.peak)
                report["results"][f"{model}, {way}"] = found
                show(model, way, found)
                if arguments.json:  # what was measured so far outlives a trainer that fails
                    arguments.json.write_text(json.dumps(report, indent=1) + "\n")


def choose(parser, wanted, known):
    chosen = wanted.split(",") if wanted else list(known)
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"no {', '.join(unknown)}; there are: {', '.join(known)}")
    return chosen


def describe_machine(device):
    """Return what it is that is measured; None without a GPU, where one is asked for."""
    import torch  # noqa: PLC0415 (the parent needs it for this only)

    if device == "cuda" and not torch.cuda.is_available():
        return None
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "processor",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "cores": os.cpu_count(),
        "load average": round(os.getloadavg()[0], 1),
    }


def name_sources(folder):
    """Describe the packages as their wheels would, where ``PYTHONPATH`` names their sources."""
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version(name)
            continue
        module = importlib.util.find_spec(name.replace("-", "_"))
        if module is None:
            continue
        import tomllib  # noqa: PLC0415 (new in Python 3.11)

        text = (Path(module.origin).parents[2] / "pyproject.toml").read_text()
        place = folder / f"{name.replace('-', '_')}-0.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
        lines = []
        for group, entries in tomllib.loads(text)["project"].get("entry-points", {}).items():
            lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
        (place / "entry_points.txt").write_text("\n".join(lines))
    path = [one for one in (os.environ.get("PYTHONPATH"), str(folder)) if one]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)
    sys.path.append(str(folder))


def is_installed(name):
    module = TRAINERS[name]
    if importlib.util.find_spec(module) is None:
        print(f"left out: {name}, as {module} cannot be imported")
        return False
    version = importlib.metadata.version(module.replace("_", "-"))
    print(f"{name}: {module} {'from its sources' if version == '0' else version}")
    return True


def measure(names, model, way, arguments):
    """Return the samples of each trainer."""
    precision, _, compiled = way.partition("+")
    task = {"model": model, "precision": precision, "compiled": compiled}
    task |= {"device": arguments.device, "steps": arguments.steps, "small": arguments.small}
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    samples = {name: [] for name in names}
    for _ in range(arguments.rounds):
        turn = list(names)
        shuffle(turn)
        for name in turn:
            command = [sys.executable, __file__, "--sample", name, json.dumps(task)]
            # Else the first one to compile would do so for all.
            with tempfile.TemporaryDirectory() as empty:
                environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": empty}
                done = subprocess.run(
                    command, check=False, capture_output=True, text=True, env=environment
                )
            if done.returncode != 0:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            samples[name].append({**task, **json.loads(done.stdout.splitlines()[-1])})
    return samples


def take_sample(name, order):
    """Train in this process; what the trainer prints goes to standard error."""
    import torch  # noqa: PLC0415 (the comparing process need not hold a device)

    # Not on the path by its name: a module there is called as the trainer itself.
    module = importlib.import_module(f"device_trainers.{name}")
    task_module = importlib.import_module("device_trainers.task")
    task = task_module.Task(**order)
    operations = task_module.count_operations(task)
    task_module.set_precision(task)
    clock = task_module.StepClock(task)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(sys.stderr):
        loss = module.train(task, clock, Path(directory))
    milliseconds = statistics.median(clock.milliseconds())
    kernels = clock.kernels_ms
    return {
        "ms": milliseconds,
        "a second": task.num_items / milliseconds * 1e3,
        "TFLOP/s": operations / milliseconds / 1e9,
        "idle": None if kernels is None else max(0.0, 1 - kernels / milliseconds),
        "waits": clock.waits_per_step(),
        "MiB": torch.cuda.max_memory_reserved() / 2**20 if task.device == "cuda" else None,
        "first step, s": clock.first_step_s,
        "loss": loss,
    }


def compare(samples, machine, peak):
    """Return per trainer the medians of its samples, and the ratio to the loop by hand."""
    base = [row["ms"] for row in samples[BASE]]
    by_precision = next((p for name, p in _PEAKS.items() if name in machine["device"]), {})
    peak = peak or by_precision.get(samples[BASE][0]["precision"])
    found = {}
    for name, rows in samples.items():
        times = [row["ms"] for row in rows]
        one = {"low": min(times), "high": max(times)}
        one["ratio"] = statistics.median(x / y for x, y in zip(times, base, strict=True))
        for column in ("ms", "TFLOP/s", *_MEASURED):
            is_known = rows[0][column] is not None
            one[column] = statistics.median(row[column] for row in rows) if is_known else None
        one["MFU"] = one["TFLOP/s"] / peak if peak else None
        found[name] = one
    return found


def show(model, way, found) -> None:
    print(f"\n## {model}, {way} ({MODELS[model]} a second)\n")
    print(f"| trainer | {' | '.join(_COLUMNS)} |\n| --- |" + " ---: |" * len(_COLUMNS))
    for name, one in found.items():
        cells = ["" if one[column] is None else f"{one[column]:.4g}" for column in _COLUMNS]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
