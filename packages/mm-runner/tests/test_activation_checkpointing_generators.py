"""Generators of random numbers in attributes of checkpointed modules."""

# ruff: noqa: S311 - these are the generators that models draw from
import random
import sys

import numpy as np
import pytest
import torch
from layers import Layers, trained, within

from mm_runner.model._kept_generators import generator_kinds

MAKERS = {
    "torch": lambda: torch.Generator().manual_seed(0),
    "python": lambda: random.Random(0),
    "numpy": lambda: np.random.default_rng(0),
    "old numpy": lambda: np.random.RandomState(0),
    "numpy of all": lambda: np.random.mtrand._rand,
}


def draw(generator, size):
    if isinstance(generator, torch.Generator):
        return torch.rand(size, generator=generator)
    if isinstance(generator, random.Random):
        return torch.tensor([generator.random() for _ in range(size)])
    is_old = isinstance(generator, np.random.RandomState)
    return torch.from_numpy((generator.rand if is_old else generator.random)(size)).float()


class Masks(Layers):
    def between(self, hidden):
        return hidden * draw(self.generator, 4)


class MasksTwice(Masks):
    """A part draws from the same generator."""

    def __init__(self):
        super().__init__()
        self.part = Masks()

    def between(self, hidden):
        return self.part(super().between(hidden))


class Begins(Masks):
    """Makes its generator in its first forward."""

    def between(self, hidden):
        if getattr(self, "generator", None) is None:
            self.generator = self.make()
        return super().between(hidden)


def both(kind, make):
    models = within(kind())
    for model in models:
        model[0].generator = generator = make()
        if hasattr(model[0], "part"):
            model[0].part.generator = generator
    return models


@pytest.mark.parametrize("kind", [Masks, MasksTwice])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_repetition_draws_the_same_numbers_from_generators_in_attributes(kind, make):
    found = [[*trained(model), draw(model[0].generator, 4)] for model in both(kind, make)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_drawn_before_the_backward_pass_counts(make):
    def draw_more(model):
        model[0].drawn = draw(model[0].generator, 2)

    found = [
        [*trained(model, between=draw_more), model[0].drawn, draw(model[0].generator, 4)]
        for model in both(Masks, make)
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize("is_none", [True, False])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_generator_may_begin_in_the_forward(make, is_none):
    if make is MAKERS["numpy of all"]:
        pytest.skip("it has begun")
    found = []
    for model in within(Begins()):
        model[0].make = make
        if is_none:
            model[0].generator = None
        found.append([*trained(model), draw(model[0].generator, 4)])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_another_generator_before_the_backward_pass_is_not_drawn_from():
    def change(model):
        model[0].generator = torch.Generator().manual_seed(5)

    found = [
        [*trained(model, between=change), draw(model[0].generator, 4)]
        for model in both(Masks, MAKERS["torch"])
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_generators_of_numpy_are_known_without_importing_it(monkeypatch):
    assert np.random.Generator in generator_kinds()
    monkeypatch.delitem(sys.modules, "numpy.random")
    assert generator_kinds() == {torch.Generator, random.Random}
    assert "numpy.random" not in sys.modules
