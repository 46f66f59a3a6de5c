"""What a step of mm-amp's wrappers costs over the same loop written by hand.

For float32, bfloat16, and float16 with a loss scaler and clipping, three equal models take turns
in one run, on the CPU, with one thread:

* ``A`` and ``A'``: autocast, scaler, clipping, step and zeroing called by hand. Their difference
  is what the machine's noise makes of no difference at all.
* ``B``: ``optim_context`` and ``update_params`` of a wrapper.

Per round, each takes a number of steps; the median of these is one sample, and the table shows the
median over rounds of the difference to ``A``'s, with the quartiles. Each round builds the three
anew, in another order: where in memory they lie counts for microseconds.

Run: ``python amp_step_cost.py [--rounds 60] [--steps 200] [--json FILE]``. It prints, and asserts
nothing; what to aim at stands beside the numbers.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import copy
import gc
import json
import platform
import random
import statistics
import time
from pathlib import Path

import torch
from torch import nn

import mm_amp
from mm_amp import AmpOptimWrapper, OptimWrapper

_WARM_UP_STEPS = 100  # past the first steps of float16, in which the loss scale finds its size
_MAX_NORM = 1.0
_AIMS = {"float32": 5, "bfloat16": 5, "float16": 10}  # microseconds over the loop by hand


def make_hand_loop(model, optimizer, kind):
    """Return a step as torch's own examples write it."""
    mse_loss = nn.functional.mse_loss

    def step_float32(inputs, targets):
        loss = mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step_bfloat16(inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    scaler = torch.amp.GradScaler("cpu") if kind == "float16" else None

    def step_float16(inputs, targets):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mse_loss(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return {"float32": step_float32, "bfloat16": step_bfloat16, "float16": step_float16}[kind]


def make_wrapped_loop(model, optimizer, kind):
    """Return the step that the README of mm-amp shows."""
    clip_grad = {"max_norm": _MAX_NORM} if kind == "float16" else None
    wrapper = (
        OptimWrapper(optimizer)
        if kind == "float32"
        else AmpOptimWrapper(optimizer, dtype=kind, clip_grad=clip_grad)
    )
    mse_loss = nn.functional.mse_loss
    cast = contextlib.nullcontext if kind == "float32" else None

    def step_float32(inputs, targets):
        with wrapper.optim_context(model):
            loss = mse_loss(model(inputs), targets)
        wrapper.update_params(loss)

    def step_mixed(inputs, targets):
        with wrapper.optim_context(model):
            loss = mse_loss(model(inputs).float(), targets)
        wrapper.update_params(loss)

    return step_mixed if cast is None else step_float32


_MAKERS = {"A": make_hand_loop, "A'": make_hand_loop, "B": make_wrapped_loop}


def make_candidates(kind, names):
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    steps, models = {}, {}
    for name in names:
        models[name] = copy.deepcopy(base)
        optimizer = torch.optim.SGD(models[name].parameters(), lr=1e-3)
        steps[name] = _MAKERS[name](models[name], optimizer, kind)
    return steps, models


def time_steps(step, data, num_steps):
    """Return the median time of a step in microseconds."""
    times = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        step(*data)
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def measure(kind, rounds, num_steps):
    data = torch.randn(16, 8), torch.randn(16, 1)
    samples = {name: [] for name in _MAKERS}
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    names = list(_MAKERS)
    for _ in range(rounds):
        shuffle(names)
        steps, models = make_candidates(kind, names)
        for name in names:
            time_steps(steps[name], data, _WARM_UP_STEPS)
        shuffle(names)
        for name in names:
            samples[name].append(time_steps(steps[name], data, num_steps))
        check_same_training(models)
        del steps, models
        gc.collect()
    return samples


def check_same_training(models):
    """Make sure that what was compared did the same work."""
    reference = models["A"].state_dict()
    for model in models.values():
        for name, value in model.state_dict().items():
            assert torch.equal(value, reference[name]), "the loops trained differently"


def compare(samples):
    found = {"A": {"median": statistics.median(samples["A"])}}
    for name in ("A'", "B"):
        pairs = zip(samples[name], samples["A"], strict=True)
        low, middle, high = statistics.quantiles([own - base for own, base in pairs], n=4)
        found[name] = {"added": middle, "quartiles": [low, high]}
    return found


def show(report, arguments) -> None:
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, mm-amp "
        f"{mm_amp.__version__}; CPU, 1 thread; {arguments.rounds} rounds of {arguments.steps} "
        "steps; microseconds per step"
    )
    print(f"{'':10} {'A':>8} {'A-prime - A':>24} {'B - A':>24} {'aim':>6}")
    for kind, found in report.items():
        cells = [f"{found['A']['median']:8.1f}"]
        for name in ("A'", "B"):
            low, high = found[name]["quartiles"]
            cells.append(f"{found[name]['added']:+8.1f} [{low:+6.1f}, {high:+6.1f}]")
        print(f"{kind:10} " + " ".join(cells) + f" {_AIMS[kind]:6}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="rounds of all candidates")
    parser.add_argument("--steps", type=int, default=200, help="steps of one candidate in a round")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    report = {
        kind: compare(measure(kind, arguments.rounds, arguments.steps))
        for kind in ("float32", "bfloat16", "float16")
    }
    show(report, arguments)
    if arguments.json:
        settings = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "model": "MLP 8-16-1, batch 16, SGD",
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "unit": "microseconds per step",
        }
        text = json.dumps({**settings, "aims": _AIMS, "results": report}, indent=2)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
