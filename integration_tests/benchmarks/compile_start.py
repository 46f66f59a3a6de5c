"""How long a compiled model takes to start: cold, warm, in regions; and how fast it is then.

For transformers of 8, 12 and 24 equal blocks, of 8 that are half and twice as wide, and a ResNet-18
of small width, on the CPU, in one run. A start is everything from ``compile_model`` to the end of
the first forward and backward; importing torch is not part of it, importing torch's compiler is.
Each start is a process of its own:

* ``plain``: ``torch.compile(model)``, with an empty cache of inductor's.
* ``whole, cold`` and ``regions, cold``: ``compile_model`` with an empty cache directory, of the
  whole model and with ``regions="auto"``.
* ``whole, warm`` and ``regions, warm``: the same after the cache was packed, deleted, and unpacked
  at another path, with an empty temporary folder, as on another machine. The cold starts above do
  find there the C++ headers that torch compiles once per machine.
* ``whole, first``: ``whole, cold`` with an empty temporary folder, too, as the first start on a
  machine or in a container: torch compiles its headers.

The table has seconds, and seconds of processors, which depend less on what else the machine does
(of the process and the compilers it started, less importing torch). A start ends with a step, which
takes its time without a compiler, too: ``beyond a step`` are the ratios of what is more than one.

Steady steps, in time of the processor and with one thread, are those of one further process, in
which ``plain``, ``whole``, ``regions`` and, for transformers, ``by hand`` (each block by torch's
own ``Module.compile()``) take turns, in an order that is drawn anew for each: what else the machine
does meets them alike. A turn is some steps in a row, of which the median counts; the table shows
the median over turns of the ratio to ``plain`` in the same turn, with the quartiles, and ``plain'``
is a second one like it: what it differs by is the machine's noise. Regions are not fused with what
lies around them, and each call of one costs torch about a quarter of a millisecond, whoever
compiled it: compare them with ``by hand``, too. Of the ResNet-18 ``regions`` is ``whole``: its
blocks hardly repeat.

Run: ``python compile_start.py [--models transformer-8 ...] [--rounds 1] [--turns 40] [--json
FILE]``. A model takes minutes; ``--json`` adds to what the file has of other models. It prints, and
asserts nothing; what to aim at stands beside the numbers.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import mm_compile
from mm_compile import compile_model, pack_cache, unpack_cache

_WIDTH, _HEADS, _BATCH, _LENGTH, _WORDS = 128, 4, 16, 128, 100
_STEPS_PER_TURN = 5
_CONFIGS = {"whole": {}, "regions": {"regions": "auto"}}
_RATIOS = (
    ("whole, cold", "whole, warm"),
    ("whole, first", "whole, warm"),
    ("regions, cold", "regions, warm"),
    ("plain", "whole, warm"),
    ("whole, cold", "regions, warm"),
    ("whole, cold", "regions, cold"),
)
_AIMS = {"cold / warm": 10, "whole / regions, 12 blocks": 2, "whole / regions, 24 blocks": 3}


class Block(nn.Module):
    """A transformer's block that normalizes first."""

    def __init__(self, width):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        heads = self.project_in(self.norm_1(x)).view(batch, length, 3, _HEADS, width // _HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.last(nn.functional.gelu(self.first(self.norm_2(x))))


class Transformer(nn.Module):
    def __init__(self, num_blocks, width=_WIDTH):
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, _WORDS)

    def forward(self, words, targets):
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


class BasicBlock(nn.Module):
    def __init__(self, num_in, num_out, stride):
        super().__init__()
        self.conv_1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(num_out), nn.BatchNorm2d(num_out)
        self.shortcut = nn.Identity()
        if stride != 1 or num_in != num_out:
            projection = nn.Conv2d(num_in, num_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(num_out))

    def forward(self, x):
        y = torch.relu(self.norm_1(self.conv_1(x)))
        return torch.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """The layers of ResNet-18, of a quarter of its width, for small images."""

    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    BasicBlock(sizes[i], sizes[i + 1], 1 if i == 0 else 2),
                    BasicBlock(sizes[i + 1], sizes[i + 1], 1),
                )
                for i in range(4)
            )
        )
        self.head = nn.Linear(sizes[-1], 10)

    def forward(self, images, labels):
        return nn.functional.cross_entropy(
            self.head(self.stages(self.stem(images)).mean((2, 3))), labels
        )


def make_model(name):
    """Return a model and a batch, the same in every process."""
    torch.manual_seed(0)
    if name == "resnet-18":
        return ResNet18(), (torch.randn(_BATCH, 3, 32, 32), torch.randint(10, (_BATCH,)))
    words = torch.randint(_WORDS, (2, _BATCH, _LENGTH))
    return Transformer(*map(int, name.removeprefix("transformer-").split("x"))), tuple(words)


# Number of blocks, and width if that is another one.
_MODELS = (
    "transformer-8",
    "transformer-8x64",
    "transformer-8x256",
    "transformer-12",
    "transformer-24",
    "resnet-18",
)


def compiled(kind, name, cache):
    """Return a step, forward and backward, of a model compiled in one of the ways."""
    model, batch = make_model(name)
    if kind == "plain":
        call = torch.compile(model)
    elif kind == "by hand":
        call = model
        for block in model.blocks:
            block.compile()
    else:
        compile_model(model, {**_CONFIGS[kind], "cache": cache})
        call = model

    def step():
        loss = call(*batch)
        loss.backward()
        model.zero_grad()
        return loss.item()

    return step


def time_start(name, kind, cache):
    """Run in a process of its own; tells seconds, and the loss as a sign of equal work."""
    imports, begin = time.process_time(), time.perf_counter()
    loss = compiled(kind, name, cache)()
    return {"seconds": time.perf_counter() - begin, "imports": imports, "loss": loss}


def time_steps(name, caches, num_turns):
    """Run in a process of its own; tells milliseconds of a step, by kind, for each turn."""
    kinds = {"plain": "plain", "plain'": "plain", "whole": "whole", "regions": "regions"}
    if name.startswith("transformer"):
        kinds["by hand"] = "by hand"
    steps = {label: compiled(kind, name, caches.get(kind)) for label, kind in kinds.items()}
    for step in steps.values():
        for _ in range(_STEPS_PER_TURN):
            step()
    samples = {label: [] for label in steps}
    order = list(steps)
    for _ in range(num_turns):
        random.Random(len(samples["plain"])).shuffle(order)  # noqa: S311 (an order, no secret)
        for label in order:
            samples[label].append(_median_ms(steps[label]))
    return samples


def _median_ms(step):
    times = []
    for _ in range(_STEPS_PER_TURN):
        begin = time.process_time()
        step()
        times.append(time.process_time() - begin)
    # The first one finds the processor's caches as another model left them.
    return statistics.median(times[1:]) * 1e3


def run_child(order, temporary, inductor):
    """Do ``order`` in a new process, and return what it tells."""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(inductor)
    # Threads that wait for each other would measure what else the machine does.
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, __file__, "--child", json.dumps(order)]
    before = _processor_seconds()
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    told = json.loads(done.stdout.splitlines()[-1])
    if "imports" in told:
        told["processor"] = _processor_seconds() - before - told["imports"]
    return told


def _processor_seconds():
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def measure(name, folder, num_rounds, num_turns):
    """Measure one model, in new processes."""
    shared = folder / "shared"
    shared.mkdir()
    # A small model makes the headers that torch compiles once.
    order = {"start": "transformer-1", "kind": "plain", "cache": None}
    run_child(order, shared, folder / "headers")
    starts = {}
    for number in range(num_rounds):
        for label, start in measure_starts(name, folder / str(number), shared).items():
            starts.setdefault(label, []).append(start)
    if not num_turns:
        return {"starts": starts, "steps": {}}
    last = folder / str(num_rounds - 1)
    order = {
        "steps": name,
        "caches": {kind: str(last / f"{kind} moved") for kind in _CONFIGS},
        "turns": num_turns,
    }
    return {"starts": starts, "steps": run_child(order, shared, last / "plain")}


def measure_starts(name, folder, shared):
    order = {"start": name, "kind": "plain", "cache": None}
    starts = {"plain": run_child(order, shared, folder / "plain")}
    machine = folder / "first-machine"  # torch cannot compile its headers beside a blank
    machine.mkdir(parents=True)
    order = {"start": name, "kind": "whole", "cache": str(folder / "first")}
    starts["whole, first"] = run_child(order, machine, machine / "unused")
    for kind in _CONFIGS:
        order = {"start": name, "kind": kind, "cache": str(folder / kind)}
        starts[f"{kind}, cold"] = run_child(order, shared, folder / f"{kind} unused")
        pack_cache(folder / kind, folder / f"{kind}.zip")
        shutil.rmtree(folder / kind)
        unpack_cache(folder / f"{kind}.zip", folder / f"{kind} moved")
        machine = folder / f"{kind} machine"
        machine.mkdir()
        order["cache"] = str(folder / f"{kind} moved")
        starts[f"{kind}, warm"] = run_child(order, machine, machine / "unused")
        starts[f"{kind}, warm"]["mebibytes"] = (folder / f"{kind}.zip").stat().st_size / 2**20
    return starts


def compare(measured):
    starts, ratios = {}, {}
    for unit in ("seconds", "processor"):
        starts[unit] = {
            label: statistics.median(start[unit] for start in each)
            for label, each in measured["starts"].items()
        }
        ratios[unit] = compare_starts(starts[unit], 0)
    losses = {start["loss"] for each in measured["starts"].values() for start in each}
    sizes = {
        label: each[0]["mebibytes"] for label, each in measured["starts"].items() if "warm" in label
    }
    steps = compare_steps(measured["steps"])
    step = steps["plain"] / 1e3 if steps else 0
    return {
        "starts": starts,
        "ratios": ratios,
        "beyond a step": {u: compare_starts(starts[u], step) for u in starts} if steps else {},
        "steps": steps,
        "mebibytes": sizes,
        "largest difference of losses": max(losses) - min(losses),
    }


def compare_starts(starts, step):
    return {
        f"{over} / {under}": (starts[over] - step) / (starts[under] - step)
        for over, under in _RATIOS
    }


def compare_steps(samples):
    if not samples:
        return {}
    base = samples.pop("plain")
    steps = {"plain": statistics.median(base)}
    for label, own in samples.items():
        ratios = [one / plain for one, plain in zip(own, base, strict=True)]
        steps[label] = statistics.quantiles(ratios, n=4)
    return steps


def show(name, found):
    print(f"\n{name:34} {'seconds':>8} {'on CPU':>8}")
    for table in ("starts", "ratios", "beyond a step"):
        if table == "beyond a step" and found[table]:
            print("  beyond a step:")
        for label, value in found[table].get("seconds", {}).items():
            processor = found[table]["processor"][label]
            print(f"  {label:32} {value:8.1f} {processor:8.1f}")
    show_steps(dict(found["steps"]))
    sizes = ", ".join(f"{label} {size:.1f}" for label, size in found["mebibytes"].items())
    print(f"  packed, MiB: {sizes}; losses differ by {found['largest difference of losses']:.1e}")


def show_steps(steps):
    if not steps:
        return
    print(f"  a step of plain: {steps.pop('plain'):.2f} ms on CPU; ratios to it:")
    for label, (low, middle, high) in steps.items():
        print(f"    {label:10} {middle:6.3f} [{low:.3f}, {high:.3f}]")


def describe(arguments):
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "mm-compile": mm_compile.__version__,
        "threads": 1,
        "processors": os.cpu_count(),
        "rounds": arguments.rounds,
        "turns": arguments.turns,
        "aims": _AIMS,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=_MODELS, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=1, help="starts of each kind")
    parser.add_argument("--turns", type=int, default=40, help="turns of steady steps; 0 for none")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(run_order(arguments.child)))
        return
    settings = describe(arguments)
    print(", ".join(f"{name}: {value}" for name, value in settings.items()))
    results = {}
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(name, Path(folder), arguments.rounds, arguments.turns)
        results[name] = compare(measured)
        show(name, results[name])
        if arguments.json:
            write(arguments.json, settings, results)


def run_order(order):
    if "start" in order:
        return time_start(order["start"], order["kind"], order["cache"])
    return time_steps(order["steps"], order["caches"], order["turns"])


def write(file, settings, results):
    earlier = json.loads(file.read_text())["results"] if file.exists() else {}
    text = json.dumps({**settings, "results": {**earlier, **results}}, indent=2)
    file.write_text(text + "\n")


if __name__ == "__main__":
    main()
