"""(i) The most memory that a process takes for the same training.

The trainings of ``trainers/``, of 12 million weights (49 MB; as much again for gradients, and for
the momentum), on the CPU with one thread: what the system counts as the process's largest resident
size until the last step, and how much more that is than after the imports. Checkpoints are left
out, which only some trainers write by default. After that the same training by hand has to find
the same weights.
"""

import importlib
import itertools
import resource
import sys

import torch
from torch import nn

TITLE = "Memory"
BASE = "by_hand"
AIM = "mm_runner takes at most 5 MB more than the loop by hand"
SYSTEMS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 3, 0, False
_NUM_STEPS, _WIDTH = 10, 3_500


def measure(systems, quick, folder):  # noqa: ARG001 (a part's signature)
    (system,) = systems
    torch.set_num_threads(1)
    task = importlib.import_module("trainers.task")
    task.build_layer = Builder()  # before the trainer takes it from there
    trainer = importlib.import_module(f"trainers.{system}")
    importlib.import_module("torch._dynamo")  # which torch's optimizers import on first use
    before, clock = peak_megabytes(), Clock()
    trainer.train(_NUM_STEPS, clock, folder)
    if clock.steps != _NUM_STEPS:
        raise RuntimeError(f"{system} made {clock.steps} steps.")
    importlib.import_module(f"trainers.{BASE}").train(_NUM_STEPS, Clock(), folder)
    own, by_hand = (layers.parameters() for layers in task.build_layer.built)
    if not all(map(torch.equal, own, by_hand)):
        raise RuntimeError(f"{system} trained differently.")
    return {system: {"MB in all": clock.peak, "MB over the imports": clock.peak - before}}


class Builder:
    """Builds the layers, and keeps them for the comparison."""

    def __init__(self):
        self.built = []

    def __call__(self):
        task = importlib.import_module("trainers.task")
        torch.manual_seed(0)
        widths = (task.FEATURES, _WIDTH, _WIDTH, task.CLASSES)
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(widths)]
        self.built.append(nn.Sequential(*layers))
        return self.built[-1]


class Clock:
    """Counts steps, and keeps the largest size."""

    def __init__(self):
        self.steps = self.peak = 0

    def tick(self):
        self.steps += 1
        self.peak = peak_megabytes()


def peak_megabytes():
    unit = 1 if sys.platform == "darwin" else 1024  # bytes or kibibytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
