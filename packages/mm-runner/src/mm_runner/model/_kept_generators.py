"""Generators of random numbers in attributes: a repetition draws the same numbers from them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch

__all__ = ["KeptGenerators", "generator_kinds"]


def generator_kinds() -> frozenset[type]:
    """Return the kinds of generators that there can be, without importing NumPy for it."""
    return _kinds(sys.modules.get("numpy.random"))


class KeptGenerators:
    """The states that generators have now.

    Args:
        generators: One may come several times.
    """

    def __init__(self, generators: Iterable[Any]) -> None:
        self._states = [(one, _state(one)) for one in {id(one): one for one in generators}.values()]

    def restore(self) -> Callable[[], None]:
        """Give them these states again, and return what undoes that."""
        before = [(one, _state(one)) for one, _ in self._states]
        _set_all(self._states)
        return lambda: _set_all(before)


@lru_cache(maxsize=2)
def _kinds(numpy_random: Any) -> frozenset[type]:
    # None is a subclass: that of Python's which asks the system has no state.
    kinds = {torch.Generator, random.Random}
    if numpy_random is not None:
        kinds |= {numpy_random.Generator, numpy_random.RandomState}
    return frozenset(kinds)


def _state(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _set_all(states: list[tuple[Any, Any]]) -> None:
    for generator, state in states:
        if isinstance(generator, random.Random):
            generator.setstate(state)
        elif hasattr(generator, "bit_generator"):
            generator.bit_generator.state = state
        else:
            generator.set_state(state)
