"""The nine update rules, written plainly: one tensor at a time, in float64, nothing in place.

``rule(p, g, s, t, o)`` returns the parameter after step ``t`` (from 1), given its gradient, its
state ``s`` (a dict, empty at first), and the options ``o`` of its group.
"""

import math

import torch


def sgd(p, g, s, t, o):  # noqa: ARG001
    g = g + o["weight_decay"] * p
    if o["momentum"] == 0:
        return p - o["lr"] * g
    s["b"] = o["momentum"] * s["b"] + (1 - o["dampening"]) * g if "b" in s else g
    d = g + o["momentum"] * s["b"] if o["nesterov"] else s["b"]
    return p - o["lr"] * d


def adadelta(p, g, s, t, o):  # noqa: ARG001
    g = g + o["weight_decay"] * p
    s["s"] = o["rho"] * s.get("s", 0) + (1 - o["rho"]) * g**2
    a = s.get("a", torch.zeros_like(p))
    d = (a + o["eps"]).sqrt() / (s["s"] + o["eps"]).sqrt() * g
    s["a"] = o["rho"] * a + (1 - o["rho"]) * d**2
    return p - o["lr"] * d


def moments(g, s, b1, b2):
    s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
    s["v"] = b2 * s.get("v", 0) + (1 - b2) * g**2
    return s["m"], s["v"]


def adam(p, g, s, t, o):
    b1, b2 = o["betas"]
    m, v = moments(g + o["weight_decay"] * p, s, b1, b2)
    if o["amsgrad"]:
        v = s["w"] = torch.maximum(s.get("w", torch.zeros_like(v)), v)
    return p - o["lr"] / (1 - b1**t) * m / (v.sqrt() / math.sqrt(1 - b2**t) + o["eps"])


def adamw(p, g, s, t, o):
    return adam(p * (1 - o["lr"] * o["weight_decay"]), g, s, t, {**o, "weight_decay": 0})


def adamp(p, g, s, t, o):
    b1, b2 = o["betas"]
    m, v = moments(g, s, b1, b2)
    if o["nesterov"]:
        m = b1 * m + (1 - b1) * g
    u, ratio = m / (v.sqrt() / math.sqrt(1 - b2**t) + o["eps"]), 1
    views = [(p.shape[0], -1), (1, -1)] if p.dim() >= 2 else []
    for view in views:
        rows, grads = p.reshape(view), g.reshape(view)
        p_norm, g_norm = rows.norm(dim=1) + o["eps"], grads.norm(dim=1) + o["eps"]
        cosine = (grads * rows).sum(1).abs() / (g_norm * p_norm)
        if cosine.max() < o["delta"] / math.sqrt(rows.shape[1]):
            n = rows / p_norm[:, None]
            u = u.reshape(view)
            u = (u - n * (n * u).sum(1, keepdim=True)).reshape(p.shape)
            ratio = o["wd_ratio"]
            s["projected"] = s.get("projected", set()) | {view[0] == 1}
            break
    return p * (1 - o["lr"] * o["weight_decay"] * ratio) - o["lr"] / (1 - b1**t) * u


def lamb(p, g, s, t, o):  # noqa: ARG001
    m, v = moments(g, s, *o["betas"])
    u = m / (v.sqrt() + o["eps"]) + o["weight_decay"] * p
    weight_norm, norm = p.norm().clamp(0, 10), u.norm()
    trust = 1 if o["adam"] or weight_norm == 0 or norm == 0 else weight_norm / norm
    return p - o["lr"] * trust * u


def schedule(x, o):
    w = o["warmup"]
    if x < w:
        return x / w
    return {
        "warmup_linear": lambda: max((x - 1) / (w - 1), 0),
        "warmup_constant": lambda: 1,
        "warmup_cosine": lambda: 0.5 * (1 + math.cos(math.pi * x)),
        "warmup_poly": lambda: math.sqrt(max(1 - x, 0)),
    }[o["schedule"]]()


def bert_adam(p, g, s, t, o):
    m, v = moments(g, s, o["b1"], o["b2"])
    u = m / (v.sqrt() + o["e"]) + o["weight_decay"] * p
    factor = 1 if o["t_total"] == -1 else schedule((t - 1) / o["t_total"], o)
    return p - o["lr"] * factor * u


def rmsprop(p, g, s, t, o):  # noqa: ARG001
    g = g + o["weight_decay"] * p
    s["s"] = o["alpha"] * s.get("s", 0) + (1 - o["alpha"]) * g**2
    s["a"] = o["alpha"] * s.get("a", 0) + (1 - o["alpha"]) * g if o["centered"] else 0
    s["b"] = o["momentum"] * s.get("b", 0) + g / ((s["s"] - s["a"] ** 2).sqrt() + o["eps"])
    return p - o["lr"] * s["b"]


def rmsprop_tf(p, g, s, t, o):  # noqa: ARG001
    if o["decoupled_decay"]:
        p = p - o["weight_decay"] * p
    else:
        g = g + o["weight_decay"] * p
    s["s"] = o["alpha"] * s.get("s", torch.ones_like(p)) + (1 - o["alpha"]) * g**2
    s["a"] = o["alpha"] * s.get("a", 0) + (1 - o["alpha"]) * g if o["centered"] else 0
    d = g / (s["s"] - s["a"] ** 2 + o["eps"]).sqrt()
    in_buffer, outside = (o["lr"], 1) if o["lr_in_momentum"] else (1, o["lr"])
    s["b"] = o["momentum"] * s.get("b", 0) + in_buffer * d
    return p - outside * s["b"]


RULES = {
    "NpuFusedAdadelta": adadelta,
    "NpuFusedAdam": adam,
    "NpuFusedAdamP": adamp,
    "NpuFusedAdamW": adamw,
    "NpuFusedBertAdam": bert_adam,
    "NpuFusedLamb": lamb,
    "NpuFusedRMSprop": rmsprop,
    "NpuFusedRMSpropTF": rmsprop_tf,
    "NpuFusedSGD": sgd,
}

# What each rule is tried with, by the rule's name: the defaults, and every option.
CASES = {
    "NpuFusedAdadelta": [{}, {"lr": 0.5, "rho": 0.8, "eps": 1e-4, "weight_decay": 0.1}],
    "NpuFusedAdam": [{}, {"weight_decay": 0.1, "amsgrad": True}, {"amsgrad": True}],
    "NpuFusedAdamW": [{}, {"weight_decay": 0.2, "amsgrad": True}, {"betas": (0.8, 0.95)}],
    "NpuFusedAdamP": [
        {},
        {"weight_decay": 0.1, "nesterov": True},
        {"weight_decay": 0.1, "delta": 0.5, "wd_ratio": 0.3},
    ],
    "NpuFusedLamb": [
        {},
        {"weight_decay": 0.1},
        {"adam": True, "weight_decay": 0.1},
        {"use_global_grad_norm": True},
    ],
    "NpuFusedBertAdam": [
        {"lr": 1e-2},
        {"lr": 1e-2, "max_grad_norm": -1, "weight_decay": 0},
        *(
            {"lr": 1e-2, "schedule": name, "warmup": 0.1, "t_total": 150, "max_grad_norm": 0.5}
            for name in ("warmup_linear", "warmup_constant", "warmup_cosine", "warmup_poly")
        ),
    ],
    "NpuFusedRMSprop": [
        {},
        {"weight_decay": 0.1, "momentum": 0.9},
        {"centered": True, "eps": 1e-3},
        {"centered": True, "eps": 1e-3, "momentum": 0.5, "weight_decay": 0.1},
    ],
    "NpuFusedRMSpropTF": [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "lr_in_momentum": False, "centered": True, "eps": 1e-3},
        {"decoupled_decay": True, "weight_decay": 0.01, "centered": True, "eps": 1e-3},
    ],
    "NpuFusedSGD": [
        {"lr": 0.05},
        {"lr": 0.05, "weight_decay": 0.1},
        {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1},
        {"lr": 0.05, "momentum": 0.9, "nesterov": True},
    ],
}
EACH_CASE = [(name, options) for name, cases in CASES.items() for options in cases]
CASE_IDS = [
    f"{name[8:]} " + (", ".join(f"{key}={value}" for key, value in options.items()) or "defaults")
    for name, options in EACH_CASE
]

# Two stacks, a scalar, a group of its own for the last three.
SHAPES = [(4, 3), (3,), (4, 3), (), (2, 3, 2, 2), (4, 3), (5,)]
NUM_FIRST_GROUP = 4
SECOND_GROUP = {"lr": 0.02, "weight_decay": 0.05}


def make_start(seed=0, shapes=SHAPES):
    """Draw parameters in float64 that float32 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).double() for shape in shapes]


def make_gradients(step, seed=0, shapes=SHAPES):
    """Draw gradients of shrinking size, so that amsgrad's moment is not the running one."""
    generator = torch.Generator().manual_seed(1000 * seed + step + 7)
    scale = 2.0 / (1 + 0.2 * step)
    return [scale * torch.randn(shape, generator=generator).double() for shape in shapes]


def make_groups(params):
    return [
        {"params": params[:NUM_FIRST_GROUP]},
        {"params": params[NUM_FIRST_GROUP:], **SECOND_GROUP},
    ]


def clip_factors(name, group_grads, o):
    """Say what each group's gradients are multiplied by before the rule sees them."""
    norms = [torch.cat([g.flatten() for g in grads]).norm() for grads in group_grads]
    if name == "NpuFusedBertAdam" and o["max_grad_norm"] > 0:
        return [min(1, o["max_grad_norm"] / (norm + 1e-6)) for norm in norms]
    if o.get("use_global_grad_norm"):
        return [1 / max(1, torch.stack(norms).norm())] * len(norms)
    return [1] * len(norms)


def follow(name, defaults, start, num_steps, seed=0):
    """Apply a rule for a number of steps to the two groups, and return parameters and states."""
    params, states = list(start), [{} for _ in start]
    groups = [defaults, {**defaults, **SECOND_GROUP}]
    for t in range(1, num_steps + 1):
        grads = make_gradients(t, seed)
        cut = (grads[:NUM_FIRST_GROUP], grads[NUM_FIRST_GROUP:])
        factors = clip_factors(name, cut, defaults)
        for index, (p, g) in enumerate(zip(params, grads, strict=True)):
            group = int(index >= NUM_FIRST_GROUP)
            o = groups[group]
            params[index] = RULES[name](p, factors[group] * g, states[index], t, o)
    return params, states
