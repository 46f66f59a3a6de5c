"""How far apart torch_npu's optimizers and ours are after 200 steps: a table.

Run: ``python trajectories.py WHEEL`` with a wheel of torch_npu. Both train the same float32
parameters, in two groups, with the same gradients, with every option of mm-npu's own tests, on
three seeds. ``formula`` is how far ours in float64 are from the rule written plainly. Errors are
the largest difference of an element, divided by the largest parameter, and the largest of the
seeds.
"""

# ruff: noqa: T201 (printing is what it is for)

import inspect
import sys
import tempfile
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "packages" / "mm-npu" / "tests"))

from formulas import CASE_IDS, EACH_CASE, follow, make_gradients, make_groups, make_start
from original import open_originals

import mm_npu

NUM_STEPS = 200
SEEDS = (0, 1, 2)


def complete(name, options):
    """Complete a case by the constructor's defaults."""
    parameters = inspect.signature(getattr(mm_npu, name)).parameters.values()
    return {**{p.name: p.default for p in parameters if p.default is not p.empty}, **options}


def num_steps_of(options):
    """Say for how many steps the original goes before it raises; None: for none."""
    if options.get("use_global_grad_norm"):
        return None  # a method is missing in every release
    if options.get("schedule") == "warmup_cosine":
        return int(options["warmup"] * options["t_total"])  # past it: cosine of a float
    if options.get("schedule") == "warmup_poly":
        return options["t_total"]  # past it: root of a negative number
    return NUM_STEPS


def make_params(start, dtype=torch.float32):
    return [torch.nn.Parameter(p.to(dtype, copy=True)) for p in start]


def train(optimizer, params, steps, seed):
    """Take steps with gradients that are accumulated in place, as the originals want it."""
    for step in steps:
        for p, gradient in zip(params, make_gradients(step, seed), strict=True):
            if p.grad is None:
                p.grad = gradient.to(p.dtype)
            else:
                p.grad.copy_(gradient)
        optimizer.step()


def error(ours, theirs):
    difference = max(
        float((a.double() - b.double()).abs().max()) for a, b in zip(ours, theirs, strict=True)
    )
    return difference / max(float(b.abs().max()) for b in theirs)


def largest_error(originals, name, options, num_steps):
    """Return the largest error of ours against the original over the seeds."""
    return max(compare(originals, name, options, seed, num_steps) for seed in SEEDS)


def compare(originals, name, options, seed, num_steps):
    """Return the error of ours against the original, both in float32."""
    start = make_start(seed)
    trained = []
    for optimizer in (getattr(mm_npu, name), originals[name]):
        params = make_params(start)
        train(optimizer(make_groups(params), **options), params, range(1, num_steps + 1), seed)
        trained.append([p.detach() for p in params])
    return error(*trained)


def compare_formula(name, options, seed):
    """Return the error of ours in float64 against the formula."""
    start = make_start(seed)
    expected, _ = follow(name, complete(name, options), start, NUM_STEPS, seed)
    params = make_params(start, torch.float64)
    ours = getattr(mm_npu, name)(make_groups(params), **options)
    train(ours, params, range(1, NUM_STEPS + 1), seed)
    return error([p.detach() for p in params], expected)


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)  # ours that they are portable, torch's of theirs
    print(f"torch {torch.__version__}, {Path(sys.argv[1]).name}; {NUM_STEPS} steps")
    print(f"{'optimizer and options':80} {'steps':>5} {'torch_npu':>10} {'formula':>10}")
    with tempfile.TemporaryDirectory() as folder, open_originals(sys.argv[1], folder) as originals:
        for case, (name, options) in zip(CASE_IDS, EACH_CASE, strict=True):
            num_steps = num_steps_of(options)
            theirs = "raises"
            if num_steps is not None:
                theirs = f"{largest_error(originals, name, options, num_steps):.1e}"
            formula = max(compare_formula(name, options, seed) for seed in SEEDS)
            print(f"{case:80} {num_steps or '':>5} {theirs:>10} {formula:>10.1e}")


if __name__ == "__main__":
    main()
