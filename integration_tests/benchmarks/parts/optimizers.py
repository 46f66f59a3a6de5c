"""(e) What a step of mm-npu's portable optimizers takes, beside torch's and timm's.

Two sets of parameters in float32, on the CPU with one thread. The base is a Python loop over the
parameters: torch's ``foreach=False``, or the rule written here as such loops usually are. Each
optimizer, system and set has a process of its own, forked one after the other: what others left of
the allocator's memory decides how much temporaries cost. A value is the fastest of five steps after
the first; all systems have the same change of the weights. Temporaries are what a step allocates at
most at once, in units of all parameters together.

``memory_alone`` is how long a step of large tensors takes that only moves them through memory as
often as its rule asks, as fast as torch's fused SGD does.
"""

import importlib
import math
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch
from torch.nn.functional import cosine_similarity

import mm_npu

TITLE = "Optimizers"
BASE = "torch_loop"
AIM = "as torch_fused where that exists; else small: a fifth of the loop; large: no slower than it"
SYSTEMS = {
    BASE: "torch",
    "mm_npu": "mm-npu",
    "torch_foreach": "torch",
    "torch_fused": "torch",
    "timm": "timm",
    "memory_alone": "torch",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 0, True
_SMALL, _LARGE = "1,000 of 16x16", "20 of 1000x1000"
_SETS = {_SMALL: (1000, 16), _LARGE: (20, 1000)}
_OPTIONS = {
    "Adam": {},
    "AdamW": {},
    "SGD": {"lr": 1e-3, "momentum": 0.9},
    "Adadelta": {},
    "RMSprop": {},
    "RMSpropTF": {"lr": 1e-2, "momentum": 0.9},
    "Lamb": {"lr": 1e-3, "weight_decay": 0.01},
    "AdamP": {"lr": 1e-3, "weight_decay": 0.01},
    "BertAdam": {"lr": 1e-4, "warmup": 0.1, "t_total": 100},
}
_FUSED = ("Adam", "AdamW", "SGD")
# timm's class by default corrects bias and clips gradients.
_TIMM = {"RMSpropTF": {}, "AdamP": {}, "Lamb": {"bias_correction": False, "max_grad_norm": None}}
# How many tensors of a parameter's size a step reads or writes at least. It reads the gradient, and
# reads and writes parameter and states; clipping reads the gradient once more; a step in proportion
# to norms writes the direction, and reads it and the parameter again.
_PASSES = {"SGD": 5, "Adadelta": 7, "RMSprop": 5, "RMSpropTF": 7, "Lamb": 10, "AdamP": 10}
_PASSES |= {"Adam": 7, "AdamW": 7, "BertAdam": 8}


class PlainLoop(torch.optim.Optimizer):
    """A loop over the parameters; ``rule`` does one."""

    def __init__(self, params, rule):
        super().__init__(params, {})
        self.rule = rule

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.rule(p, p.grad, self.state[p])


def average(p, g, state):
    if not state:
        state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
    state["step"] += 1
    state["m"].mul_(0.9).add_(g, alpha=0.1)
    state["v"].mul_(0.999).addcmul_(g, g, value=0.001)
    return state["m"], state["v"]


def bert_adam(p, g, state):
    torch.nn.utils.clip_grad_norm_(p, 1.0)  # per parameter, as the first BertAdam did
    m, v = average(p, g, state)
    u = m / (v.sqrt() + 1e-6)
    u += 0.01 * p
    x = (state["step"] - 1) / 100
    p.add_(u, alpha=-1e-4 * (x / 0.1 if x < 0.1 else (x - 1) / (0.1 - 1)))


def lamb(p, g, state):
    m, v = average(p, g, state)
    u = m / v.sqrt().add_(1e-6)
    u.add_(p, alpha=0.01)
    weight_norm, norm = p.norm().clamp(0, 10), u.norm()
    ratio = 1.0 if weight_norm == 0 or norm == 0 else weight_norm / norm
    p.add_(u * ratio, alpha=-1e-3)


def adamp(p, g, state):
    m, v = average(p, g, state)
    u = m / (v.sqrt() / math.sqrt(1 - 0.999 ** state["step"])).add_(1e-8)
    ratio = 1.0
    for view in ((p.shape[0], -1), (1, -1)):
        rows, grads = p.view(view), g.view(view)
        if cosine_similarity(rows, grads).abs().max() < 0.1 / math.sqrt(rows.shape[1]):
            n = rows / rows.norm(dim=1, keepdim=True).add_(1e-8)
            u = (u.view(view) - n * (n * u.view(view)).sum(1, keepdim=True)).view_as(p)
            ratio = 0.1
            break
    p.mul_(1 - 1e-3 * 0.01 * ratio)
    p.add_(u, alpha=-1e-3 / (1 - 0.9 ** state["step"]))


def rmsprop_tf(p, g, state):
    if not state:
        state["s"], state["b"] = torch.ones_like(p), torch.zeros_like(p)
    state["s"].add_(g.pow(2) - state["s"], alpha=0.1)
    state["b"].mul_(0.9).addcdiv_(g, state["s"].add(1e-10).sqrt_(), value=1e-2)
    p.add_(-state["b"])


_PLAIN = {"BertAdam": bert_adam, "Lamb": lamb, "AdamP": adamp, "RMSpropTF": rmsprop_tf}


def find_maker(system, name):
    """Return what makes the optimizer of a system from parameters, or None if it has none."""
    options, maker = dict(_OPTIONS[name]), getattr(torch.optim, name, None)
    if system == "mm_npu":
        maker = getattr(mm_npu, f"NpuFused{name}")
    elif system == "memory_alone":
        maker, options = torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9, "fused": True}
    elif system == "timm":
        maker = name in _TIMM and getattr(importlib.import_module("timm.optim"), name)
        options |= _TIMM.get(name, {})
    elif system == BASE and maker is None:
        maker, options = PlainLoop, {"rule": _PLAIN[name]}
    elif system == "torch_fused" and name not in _FUSED:
        maker = None
    else:
        options |= {"foreach": False} if system == BASE else {system.removeprefix("torch_"): True}
    return maker and partial(maker, **options)


def measure(systems, quick, folder):  # noqa: ARG001 (writes no file)
    importlib.import_module("torch._dynamo")  # once, not by the first optimizer of each process
    values = {system: {} for system in systems}
    for name in ("AdamW", "Adadelta", "Lamb") if quick else _OPTIONS:
        for size in (_SMALL,) if quick else _SETS:
            changes = {}
            for system in systems:
                maker = find_maker(system, name)
                if not maker or (system == "memory_alone" and size == _SMALL):
                    continue
                with ProcessPoolExecutor(1, get_context("fork")) as processes:
                    found = processes.submit(time_steps, maker, *_SETS[size]).result()
                milliseconds, temporaries, change = found
                if system == "memory_alone":
                    milliseconds *= _PASSES[name] / _PASSES["SGD"]
                else:
                    changes[system] = change
                    if temporaries is not None:
                        values[system][f"temporaries, {name}, {size}"] = temporaries
                values[system][f"milliseconds, {name}, {size}"] = milliseconds
            for system, change in changes.items():
                if not torch.allclose(*map(torch.tensor, (change, changes[BASE])), rtol=1e-3):
                    raise RuntimeError(f"{system} changes the weights unlike {BASE}'s {name}.")
    return values


def time_steps(maker, count, size):
    warnings.simplefilter("ignore", mm_npu.PortableOptimizerWarning)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # So small that no rule clips or limits a norm: they differ in what they take the norm of.
    params = [torch.nn.Parameter(torch.randn(size, size) * 5e-3) for _ in range(count)]
    for p in params:
        p.grad = torch.randn(size, size) * 1e-4
    first = params[0].detach().clone()
    optimizer, times = maker(params), []
    for _ in range(6):
        begin = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    change = (params[0].detach() - first).flatten()[:1000].tolist()
    temporaries = measure_temporaries(optimizer) / count / size**2 / 4 if size > 100 else None
    return min(times[1:]) * 1e3, temporaries, change


def measure_temporaries(optimizer):
    """Return the most bytes that a step has allocated at once."""
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    now = highest = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            highest = max(highest, now)
    return highest
