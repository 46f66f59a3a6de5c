"""(c) What a step in mixed precision costs over the same step by hand, and what bfloat16 gains.

Equal models take turns step by step, on the CPU with one thread, with autocast, loss scaler,
clipping (of float16 only), step and zeroing called by hand or by a library; afterwards their
weights are equal, bit by bit. ``by_hand_again`` is the same as ``by_hand``: their difference is
noise. All models are built anew several times, in another order, as it counts for microseconds
where in memory they lie. The speed-up is the time of a step in float32 over that in bfloat16, for
models whose time goes into computing: below 1 where the processor has no instructions for bfloat16.
The peers have no float16 for the CPU; ``--quick`` leaves them and the speed-ups out.
"""

# ruff: noqa: PLC0415 (only what is measured is imported)

import copy
import gc
import random
import statistics
import time

import torch
from torch import nn

TITLE = "Mixed precision"
BASE = "by_hand"
AIM = "mm_amp adds at most 2 % in bfloat16, and 4 % in float16 with clipping"
SYSTEMS = {
    BASE: "torch",
    "by_hand_again": "torch",
    "mm_amp": "mm-amp",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 3, True
_PEERS = ("lightning_fabric", "accelerate")
_MAX_NORM = 1.0
_mse = nn.functional.mse_loss


def measure(systems, quick, folder):  # noqa: ARG001 (a part's signature)
    torch.set_num_threads(1)
    gc.disable()
    values = {system: {} for system in systems}
    ours = [system for system in systems if system not in _PEERS]
    for kind in ("float32", "bfloat16", "float16"):
        names = ours if quick or kind == "float16" else systems
        # 100 for the loss scale of float16 to find its size.
        found = time_steps(
            names, kind, build_tiny, builds=2 if quick else 4, warm_up=100, steps=200
        )
        for system, seconds in found.items():
            values[system][f"microseconds of a step, {kind}"] = seconds * 1e6
    models = {"convolutions": build_convolutions, "transformer": build_transformer}
    for name, build in {} if quick else models.items():
        full, half = (
            time_steps([BASE, "mm_amp"], kind, build, builds=1, warm_up=2, steps=10)
            for kind in ("float32", "bfloat16")
        )
        for system in full:
            values[system][f"speed-up of bfloat16, {name}"] = full[system] / half[system]
    return values


def time_steps(names, kind, build, *, builds, warm_up, steps):
    """Return the median time of each system's step, in seconds."""
    times = {name: [] for name in names}
    for _ in range(builds):
        torch.manual_seed(0)
        base, data = build()
        order = random.sample(names, len(names))
        models = {name: copy.deepcopy(base) for name in order}
        made = {}
        for name, model in models.items():
            make = by_hand if name == "by_hand_again" else globals()[name]
            made[name] = make(model, torch.optim.SGD(model.parameters(), lr=1e-3), kind)
        for index in range(warm_up + steps):
            for name in random.sample(order, len(order)):  # as a step slows the next one's
                begin = time.perf_counter()
                made[name](*data)
                if index >= warm_up:
                    times[name].append(time.perf_counter() - begin)
        for name, model in models.items():
            for one, other in zip(model.parameters(), models[BASE].parameters(), strict=True):
                if not torch.equal(one, other):
                    raise RuntimeError(f"{name} trained differently in {kind}.")
        gc.collect()
    return {name: statistics.median(found) for name, found in times.items()}


def build_tiny():
    """Return a model whose step takes about 250 microseconds, and its data."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, (torch.randn(16, 8), torch.randn(16, 1))


def build_convolutions():
    layers = []
    for channels, width in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), nn.BatchNorm2d(width)]
        layers += [nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    return model, (torch.randn(4, 3, 64, 64), torch.randn(4, 10))


def build_transformer():
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return model, (torch.randn(2, 64, 128), torch.randn(2, 64, 128))


def by_hand(model, optimizer, kind):
    """Return a step as torch's own examples write it."""
    scaler = torch.amp.GradScaler("cpu")

    def step_float32(inputs, targets):
        _mse(model(inputs).float(), targets).backward()  # as in the other two
        optimizer.step()
        optimizer.zero_grad()

    def step_bfloat16(inputs, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = _mse(model(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def step_float16(inputs, targets):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = _mse(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return {"float32": step_float32, "bfloat16": step_bfloat16, "float16": step_float16}[kind]


def mm_amp(model, optimizer, kind):
    from mm_amp import AmpOptimWrapper, OptimWrapper

    clip_grad = {"max_norm": _MAX_NORM} if kind == "float16" else None
    wrapper = (
        OptimWrapper(optimizer)
        if kind == "float32"
        else AmpOptimWrapper(optimizer, dtype=kind, clip_grad=clip_grad)
    )

    def step(inputs, targets):
        with wrapper.optim_context(model):
            loss = _mse(model(inputs).float(), targets)
        wrapper.update_params(loss)

    return step


def lightning_fabric(model, optimizer, kind):
    from lightning_fabric import Fabric

    precision = "bf16-mixed" if kind == "bfloat16" else "32-true"
    fabric = Fabric(accelerator="cpu", devices=1, precision=precision)
    return make_step(fabric, *fabric.setup(model, optimizer))


def accelerate(model, optimizer, kind):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state()  # else the first precision stays for all
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if kind == "bfloat16" else "no")
    return make_step(accelerator, *accelerator.prepare(model, optimizer))


def make_step(library, model, optimizer):
    """Return a step for a wrapped model, whose outputs are float32."""

    def step(inputs, targets):
        library.backward(_mse(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

    return step
