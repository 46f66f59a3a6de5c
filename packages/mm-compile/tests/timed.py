"""Models and a backend that take as much time as a clock of the tests is told."""

import torch
from torch import nn
from toy import CountingBackend

from mm_compile import compile_model


class SteppedClock:
    """A clock that tests set."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        for module in ("_warm_up", "_backend"):
            monkeypatch.setattr(f"mm_compile.{module}.perf_counter", lambda: self.now)


class TimedBackend(CountingBackend):
    """Takes ``compiling`` seconds to compile, and ``running`` to run a graph."""

    def __init__(self, clock, *, compiling, running):
        super().__init__()
        self._clock = clock
        self._compiling = compiling
        self._running = running

    def __call__(self, graph_module, example_inputs):
        self._clock.now += self._compiling
        run = super().__call__(graph_module, example_inputs)

        def take_time(*args):
            self._clock.now += self._running
            return run(*args)

        return take_time


class Timed(nn.Module):
    """Takes ``seconds`` to run eagerly."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self._clock = clock
        self._seconds = seconds

    def forward(self, inputs):
        if not torch._dynamo.is_compiling():
            self._clock.now += self._seconds
        return torch.relu(self.linear(inputs))


def train(model, clock, steps):
    for _ in range(steps):
        model(torch.randn(3, 4)).sum().backward()
        clock.now += 0.5  # optimizer, data


class Blocks(nn.Module):
    """Three blocks of one kind, two of another, each of which takes a second."""

    def __init__(self, clock):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(Timed(clock, 0.5), *rest)
            for rest in (
                *([Timed(clock, 0.5)] for _ in range(3)),
                *([Timed(clock, 0.5), nn.Linear(4, 4)] for _ in range(2)),
            )
        )

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return inputs


def auto(clock, *, compiling, running, **cfg):
    model = Blocks(clock)
    backend = TimedBackend(clock, compiling=compiling, running=running)
    cfg = {"disable": "auto", "regions": "auto", "backend": backend, **cfg}
    return model, backend, compile_model(model, cfg)


def compiled(handle):
    return [region.is_compiled for region in handle.regions]
