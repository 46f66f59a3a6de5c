"""What all trainers train: a model so small that the rest of the step shows."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FEATURES, CLASSES, BATCH_SIZE = 10, 2, 4
LEARNING_RATE = 0.01
LOG_INTERVAL = 50
_DISTINCT_SAMPLES = 64


class Samples(Dataset):
    """As many samples as asked for, of a few that are kept: reading them costs next to nothing."""

    def __init__(self, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(_DISTINCT_SAMPLES, FEATURES, generator=generator)
        self._samples = [
            {"inputs": row, "labels": index % CLASSES} for index, row in enumerate(inputs)
        ]
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict:
        return self._samples[index % _DISTINCT_SAMPLES]


class StepClock:
    """Notes the time at every hundredth step; the same few instructions for every trainer."""

    STRIDE = 100

    def __init__(self) -> None:
        self.wall: list[float] = []
        self._step = 0

    def tick(self) -> None:
        if self._step % self.STRIDE == 0:
            self.wall.append(time.perf_counter())
        self._step += 1


def build_layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


class TinyClassifier(nn.Module):
    """One linear layer and its loss; ticks the clock in every forward."""

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self.linear = build_layer()
        self._clock = clock

    def forward(self, inputs, labels):
        self._clock.tick()
        return nn.functional.cross_entropy(self.linear(inputs), labels)


def build_loader(num_steps: int) -> DataLoader:
    return DataLoader(Samples(num_steps * BATCH_SIZE), batch_size=BATCH_SIZE)


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
