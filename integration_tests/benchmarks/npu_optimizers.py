"""How long a step of mm-npu's portable optimizers takes, beside torch's and timm's.

Two sets of parameters, 1,000 of 16x16 and 20 of 1000x1000, in float32 on the CPU, with one thread
and with two. Of each optimizer take turns, in an order that is drawn anew in each round:

* ``ours``;
* ``loop``: a Python loop over the parameters, which is torch's ``foreach=False``, timm's class, or,
  where neither has the rule, the rule written plainly here;
* ``foreach`` and ``fused``: torch's multi-tensor and fused kernels, where it has them;
* ``sgd``: torch's fused SGD with momentum, which shows how fast memory is;
* ``ours'``: ours a second time. Its difference to ``ours`` is the machine's noise.

Each optimizer is measured in a process of its own, as a training has one: what others left of the
allocator's memory decides how much the temporaries of ``loop`` and ``foreach`` cost. Each candidate
takes a step to warm up and then some steps per turn; the fastest of these is a sample, the table
shows the median over rounds, with the ratio of the others to ours. For rules of our own it
says how much faster than the loop we are, and how much a step could be that does nothing but move
its tensors through memory, as often as its rule asks (``_PASSES``), as fast as ``sgd`` does: more
is out of reach for large tensors. Last, what a step of ours needs in memory besides parameters,
gradients and states.

Run: ``python npu_optimizers.py [--rounds 15] [--steps 5] [--json FILE]``. It
prints, and asserts nothing; what to aim at stands in ``_AIMS``. timm is used if it is installed.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import gc
import importlib.util
import json
import platform
import random
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

import mm_npu

_LARGE = "20 of 1000x1000"
_SETS = {"1000 of 16x16": (1000, 16), _LARGE: (20, 1000)}
_AIMS = {
    "Adam, AdamW, SGD": "torch's fused kernel, and 2 microseconds per parameter",
    "others, small": "a fifth of the loop, and no slower than foreach",
    "others, large": "no slower than the loop",
    "memory": "temporaries of a few parameters",
}
_NAMES = {
    "Adam": {},
    "AdamW": {},
    "SGD": {"lr": 1e-3, "momentum": 0.9},
    "Adadelta": {},
    "RMSprop": {},
    "RMSpropTF": {"momentum": 0.9},
    "Lamb": {"weight_decay": 0.01},
    "AdamP": {"weight_decay": 0.01},
    "BertAdam": {"lr": 1e-4, "warmup": 0.1, "t_total": 10000},
}
_TORCHS_OWN = ("Adam", "AdamW", "SGD")
# How many tensors of a parameter's size a step reads or writes at least. It reads the gradient, and
# reads and writes parameter and states; clipping reads the gradient once more; a step in proportion
# to norms writes the direction, and reads it and the parameter again.
_PASSES = {"Adadelta": 7, "RMSprop": 5, "RMSpropTF": 7, "Lamb": 10, "AdamP": 10, "BertAdam": 8}
_PASSES_OF_SGD = 5


class PlainLoop(torch.optim.Optimizer):
    """A loop over the parameters, as such optimizers are usually written; ``rule`` does one."""

    def __init__(self, params, rule) -> None:
        super().__init__(params, {})
        self.rule = rule

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.rule(p, p.grad, self.state[p])


def make_moments(p, g, state, *, b1=0.9, b2=0.999):
    if not state:
        state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
    state["step"] += 1
    state["m"].mul_(b1).add_(g, alpha=1 - b1)
    state["v"].mul_(b2).addcmul_(g, g, value=1 - b2)
    return state["m"], state["v"]


def loop_bert_adam(p, g, state) -> None:
    torch.nn.utils.clip_grad_norm_(p, 1.0)  # per parameter, as the first BertAdam did
    m, v = make_moments(p, g, state)
    u = m / (v.sqrt() + 1e-6)
    u += 0.01 * p
    x = (state["step"] - 1) / 10000
    p.add_(u, alpha=-1e-4 * (x / 0.1 if x < 0.1 else (x - 1) / (0.1 - 1)))


def loop_lamb(p, g, state) -> None:
    m, v = make_moments(p, g, state)
    u = m / v.sqrt().add_(1e-6)
    u.add_(p, alpha=0.01)
    weight_norm, norm = p.pow(2).sum().sqrt().clamp(0, 10), u.pow(2).sum().sqrt()
    ratio = 1.0 if weight_norm == 0 or norm == 0 else weight_norm / norm
    p.add_(u * ratio, alpha=-1e-3)


def loop_adamp(p, g, state) -> None:
    m, v = make_moments(p, g, state)
    u = m / (v.sqrt() / (1 - 0.999 ** state["step"]) ** 0.5).add_(1e-8)
    ratio = 1.0
    for view in ((p.shape[0], -1), (1, -1)):
        rows, grads = p.view(view), g.view(view)
        cosine = torch.nn.functional.cosine_similarity(rows, grads, dim=1, eps=1e-8).abs()
        if cosine.max() < 0.1 / rows.shape[1] ** 0.5:
            n = rows / rows.norm(dim=1, keepdim=True).add_(1e-8)
            u = (u.view(view) - n * (n * u.view(view)).sum(1, keepdim=True)).view_as(p)
            ratio = 0.1
            break
    p.mul_(1 - 1e-3 * 0.01 * ratio)
    p.add_(u, alpha=-1e-3 / (1 - 0.9 ** state["step"]))


def loop_rmsprop_tf(p, g, state) -> None:
    if not state:
        state["s"], state["b"] = torch.ones_like(p), torch.zeros_like(p)
    state["s"].add_(g.pow(2) - state["s"], alpha=0.1)
    state["b"].mul_(0.9).addcdiv_(g, state["s"].add(1e-10).sqrt_(), value=1e-2)
    p.add_(-state["b"])


_PLAIN = {
    "BertAdam": loop_bert_adam,
    "Lamb": loop_lamb,
    "AdamP": loop_adamp,
    "RMSpropTF": loop_rmsprop_tf,
}


def make_loop(name, params):
    options = _NAMES[name]
    if hasattr(torch.optim, name):
        return getattr(torch.optim, name)(params, foreach=False, **options)
    if name != "BertAdam" and importlib.util.find_spec("timm"):
        import timm.optim  # noqa: PLC0415 (not always there)

        return getattr(timm.optim, name)(params, **{"lr": 1e-3, **options})
    return PlainLoop(params, _PLAIN[name])


def make_candidates(name):
    options, ours = _NAMES[name], getattr(mm_npu, f"NpuFused{name}")
    makers = {
        "ours": lambda params: ours(params, **options),
        "ours'": lambda params: ours(params, **options),
        "loop": lambda params: make_loop(name, params),
    }
    if hasattr(torch.optim, name):
        theirs = getattr(torch.optim, name)
        makers["foreach"] = lambda params: theirs(params, foreach=True, **options)
    if name in _TORCHS_OWN and hasattr(torch, "_fused_sgd_"):
        makers["fused"] = lambda params: theirs(params, fused=True, **options)
    if name in _PASSES and hasattr(torch, "_fused_sgd_"):
        makers["sgd"] = lambda params: torch.optim.SGD(params, lr=0.0, momentum=0.9, fused=True)
    return makers


def make_params(count, size):
    params = [torch.nn.Parameter(torch.randn(size, size)) for _ in range(count)]
    for p in params:
        p.grad = torch.randn(size, size)
    return params


def time_turn(optimizer, num_steps):
    optimizer.step()
    times = []
    for _ in range(num_steps):
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def measure(name, size, rounds, num_steps):
    makers = make_candidates(name)
    names, samples = list(makers), {key: [] for key in makers}
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    params = make_params(*size)
    for _ in range(rounds):
        optimizers = {key: make(params) for key, make in makers.items()}
        shuffle(names)
        for key in names:
            samples[key].append(time_turn(optimizers[key], num_steps))
        del optimizers
        gc.collect()
    return {key: statistics.median(values) for key, values in samples.items()}


def measure_memory(name, size):
    """Return the most that a step allocates at once, in sizes of all parameters together."""
    params = make_params(*size)
    optimizer = getattr(mm_npu, f"NpuFused{name}")(params, **_NAMES[name])
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    now = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    return highest / sum(p.numel() * p.element_size() for p in params)


def compare_with_loop(name, times, parameters):
    """Return how many times faster than the loop ours is, and moving memory only."""
    speedups = {"ours": times["loop"] / times["ours"]}
    if parameters == _LARGE and "sgd" in times:  # small ones need not come from memory
        speedups["memory alone"] = times["loop"] / times["sgd"] * _PASSES_OF_SGD / _PASSES[name]
    return speedups


def show(found) -> None:
    for (threads, parameters), rows in found.items():
        print(f"\n{parameters}, {threads} thread(s); milliseconds a step, and times ours")
        for name, times in rows.items():
            base = times["ours"]
            cells = [f"{key} {value:.2f} ({value / base:.2f})" for key, value in times.items()]
            print(f"{name:10} " + "   ".join(cells))
        print("times faster than the loop: ours, and what moving memory alone would be")
        for name, times in rows.items():
            if name in _PASSES:
                speedups = compare_with_loop(name, times, parameters)
                cells = [f"{key} {value:.2f}" for key, value in speedups.items()]
                print(f"{name:10} " + "   ".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="rounds of all candidates")
    parser.add_argument("--steps", type=int, default=5, help="steps of one candidate in a round")
    parser.add_argument("--names", nargs="*", default=list(_NAMES), help="optimizers to measure")
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", mm_npu.PortableOptimizerWarning)
    torch.manual_seed(0)
    if arguments.child:
        print(json.dumps(run_order(arguments, **arguments.child)))
        return
    has_timm = importlib.util.find_spec("timm") is not None
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, mm-npu "
        f"{mm_npu.__version__}, timm {'installed' if has_timm else 'not installed'}; CPU; "
        f"{arguments.rounds} rounds of {arguments.steps} steps"
    )
    found = {
        (threads, parameters): {
            name: in_own_process({"name": name, "parameters": parameters, "threads": threads})
            for name in arguments.names
        }
        for threads in arguments.threads
        for parameters in _SETS
    }
    show(found)
    memory = {name: in_own_process({"name": name}) for name in arguments.names}
    print(f"\nlargest temporaries of a step over {_LARGE}, in sizes of all parameters")
    print("   ".join(f"{name} {value:.3f}" for name, value in memory.items()))
    if arguments.json:
        results = [
            {"threads": threads, "parameters": parameters, "milliseconds": rows}
            for (threads, parameters), rows in found.items()
        ]
        settings = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "timm": has_timm,
            "rounds": arguments.rounds,
            "steps": arguments.steps,
        }
        report = {**settings, "aims": _AIMS, "results": results, "memory": memory}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def in_own_process(order):
    """Do ``order`` in a new process, with the arguments of this one, and return what it tells."""
    command = [sys.executable, __file__, *sys.argv[1:], "--child", json.dumps(order)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_order(arguments, name, parameters=None, threads=None):
    """Return milliseconds by candidate, or, without ``parameters``, what a step needs in memory."""
    if parameters is None:
        return measure_memory(name, _SETS[_LARGE])
    torch.set_num_threads(threads)
    return measure(name, _SETS[parameters], arguments.rounds, arguments.steps)


if __name__ == "__main__":
    main()
