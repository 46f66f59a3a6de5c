"""Types of arguments, told from annotations and defaults, before anything is called."""
# ruff: noqa: UP007, UP045 - both ways to write an annotation are read

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Optional, Protocol, TypeVar, Union

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from typing_extensions import TypeAliasType

from mm_runner import ConfigError
from mm_runner.registry import Registry, build_from_cfg, check_arguments
from mm_runner.registry._annotations import describe_annotation, fits

T = TypeVar("T")
S = TypeVar("S")
_INTEGERS = "a list (list[int])"


class Colour(enum.Enum):
    RED = 1


class Sized(Protocol):
    size: int


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [1, True and 2], ["1", 1.5, True, None, [1], {"a": 1}]),
        (float, [1, 1.5], ["1e-3", True, None, [1.0], {"value": 1.0}]),
        (bool, [True, False, 0, 1], ["true", 2, None, []]),
        (str, ["a"], [1, None, ["a"], {"a": 1}]),
        (None, [None], [0, "None"]),
        (Optional[int], [1, None], ["1", {}]),
        (Union[int, str], [1, "a"], [1.5, None, []]),
        (int | list[int], [1, [1]], ["1", ["1"]]),
        (Literal["norm", 2], ["norm", 2], ["value", 2.0, True]),
        (tuple[float, float], [(0.9, 0.99), [0.9, 1]], [[0.9], 0.9, ["a", "b"], {"a": 1}]),
        (tuple[int, ...], [(1, 2, 3), []], [["a"], 1]),
        (Sequence[int], [[1], (2,)], [3, ["a"], {"a": 1}]),
        (Sequence[str], [["a"], "a"], [3, [1]]),
        (Iterable, [[1], "a"], [3, None]),
        (dict[str, int], [{"a": 1}], [{"a": "b"}, [1], 1, "a"]),
        (Mapping[str, Any], [{"a": []}], [[1], 1, "a", None]),
        (Callable[..., int], ["name", {"type": "name"}, len], [1, True, None, [1]]),
        (type[nn.Module], ["name", nn.Linear], [1, None]),
        (nn.Module, [nn.Identity(), {"type": "Net"}], [1, "Net", None, [1]]),
        (torch.dtype, [torch.float16, "float16"], [16, None]),
        (torch.device, [torch.device("cpu"), "cpu", 0], [None, 1.5]),
        (Path, [Path("a"), "a"], [1, None, {}]),
        (float | torch.Tensor, [0.1, torch.ones(())], [{"value": 0.1}, [0.1], "0.1"]),
        (Optional[torch.Tensor], [torch.ones(2), [0.1, 0.9], None], ["0.1", {"a": 1}]),
        (np.ndarray, [np.ones(2), [[1, 2], [3, 4]]], ["a", None]),
        (npt.NDArray[np.float32] | None, [[1, 2], None], ["a"]),
        (Colour, [Colour.RED, "RED", 1], [None, True, 1.5]),
        (torch.Size, [torch.Size([1]), [1, 2], (1, 2)], ["a", 1, {"a": 1}]),
        (complex, [1, 1.5, 1j], ["1", None, [1]]),
        (npt.ArrayLike, [0.5, 1, [1, 2], [[0.5]]], []),
        (dict[str, object], [{"a": {"b": 1}, "c": [1], "d": None}], [1, [1]]),
        (TypeAliasType("Size", int | list[int]), [1, [1, 2]], ["a", ["a"]]),
        (Any, [1, "a", None, {}], []),
        (T, [1, "a", None], []),
        (Sized, [1, "a"], []),
        (Callable, ["name"], []),
    ],
    ids=lambda value: None if isinstance(value, list) else describe_annotation(value),
)
def test_values_fit_annotations(annotation, good, bad):
    assert [value for value in good if not fits(value, annotation)] == []
    assert [value for value in bad if fits(value, annotation)] == []


def alias_of(value, parameters=()):
    """Return an alias as ``type X = ...`` makes one, which not every Python can read."""

    class TypeAliasType:
        __type_params__ = parameters

        @property
        def __value__(self):
            return value()

        def __call__(self):  # Python 3.10 takes what cannot be called into no union
            raise NotImplementedError

    return TypeAliasType()


def test_an_alias_that_only_type_checkers_can_look_up_refuses_nothing():
    alias = alias_of(lambda: NoSuchName | None)  # noqa: F821
    for annotation in (alias, list[alias], Union[alias, int]):
        assert fits([1.0], annotation)
    assert not fits("1.0", dict[str, alias])
    assert describe_annotation(alias) == "Any"

    def own(weights: alias = None):
        return weights

    check_arguments(own, {"weights": [1.0, 2.0]}, "own")


def test_aliases_of_each_other_come_to_an_end():
    def one():
        return alias_of(other)

    def other():
        return alias_of(one)

    assert fits("x", one())
    assert describe_annotation(one()) == "Any"

    def this():
        return alias_of(lambda: Union[list[int], that()])

    def that():
        return alias_of(lambda: Union[this(), int])

    assert fits("x", this())
    assert "TypeAliasType" in describe_annotation(this())


@pytest.mark.parametrize(
    ("alias", "arguments", "good", "bad", "words"),
    [
        (TypeAliasType("Many", list[T], type_params=(T,)), int, [1], ["a"], "a list (list[int])"),
        (
            TypeAliasType("Turned", dict[S, T], type_params=(T, S)),
            (int, str),
            {"a": 1},
            {"a": "b"},
            "a dict",
        ),
        (TypeAliasType("Maybe", list[T] | None, type_params=(T,)), int, None, ["a"], _INTEGERS),
        (TypeAliasType("Same", list[int], type_params=(T,)), str, [1], ["a"], _INTEGERS),
    ],
    ids=str,
)
def test_the_parameters_of_an_alias_are_filled_in(alias, arguments, good, bad, words):
    assert fits(good, alias[arguments])
    assert not fits(bad, alias[arguments])
    assert describe_annotation(alias[arguments]) == words


def test_objects_are_taken_as_they_are():
    duck = object()
    for annotation in (int, nn.Module, list[int], Callable):
        assert fits(duck, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Optional[float], "a number"),
        (Union[bool, str], "True or False or text"),
        (Literal["a", "b"], "'a' or 'b'"),
        (Sequence[int], r"a list (Sequence[int])"),
        (list, "a list"),
        (dict[str, int], "a dict"),
        (nn.Module, "Module"),
    ],
    ids=str,
)
def test_annotations_are_said_in_words(annotation, words):
    assert describe_annotation(annotation) == words


def told(width: "int", lid: "NoSuchName" = None, loss: float = None):  # noqa: ARG001, F821, RUF013
    return width


def untold(width=3, rate=0.1, flag=False, name="a"):  # noqa: ARG001, FBT002
    return width


@pytest.mark.parametrize(
    ("component", "arguments", "message"),
    [
        (told, {"width": "3"}, r"here\.width: an integer is needed, got '3'\."),
        (told, {"width": {"value": 3}}, r"here\.width: an integer is needed, got \{'value': 3\}"),
        (untold, {"rate": "0.1"}, r"here\.rate: a number is needed, got '0\.1'"),
        (untold, {"flag": "yes"}, r"here\.flag: True or False is needed, got 'yes'"),
        (untold, {"width": {}}, r"here\.width: an integer is needed, got \{\}"),
        (told, {"width": "x" * 500}, r"got 'x{119}\.\.\."),
    ],
    ids=["text", "nested", "default-number", "default-flag", "default-dict", "long"],
)
def test_an_argument_of_another_type_is_named_by_its_path(component, arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_arguments(component, arguments, "here")


def test_what_cannot_be_told_is_not_refused():
    check_arguments(told, {"width": 1, "lid": 5, "loss": None}, "here")
    check_arguments(untold, {"width": (3, 3), "rate": [0.1], "flag": None, "name": 3}, "here")


def test_an_error_of_ours_is_given_its_path_and_keeps_its_class():
    things = Registry("thing")

    @things.register_module()
    def refuse(depth):
        if depth:
            return {}[depth]
        raise ConfigError("sizes: none fits.")

    with pytest.raises(ConfigError, match=r"^model\.neck: sizes: none fits\.$"):
        build_from_cfg({"type": "refuse", "depth": 0}, things, where="model.neck")
    with pytest.raises(
        ConfigError,
        match=r"^m: refuse refused its arguments: KeyError: 5 \(test_annotations\.py, line \d+\)$",
    ):
        build_from_cfg({"type": "refuse", "depth": 5}, things, where="m")
