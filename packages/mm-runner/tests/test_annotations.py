"""Types of arguments, checked against simple annotations before anything is called."""
# ruff: noqa: UP007, UP045 - both ways to write an annotation are read

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union

import pytest
import torch
from torch import nn

from mm_runner import ConfigError
from mm_runner.registry import Registry, build_from_cfg, check_arguments

T = TypeVar("T")
_ANYTHING = [1, "a", 1.5, None, [1], {"a": 1}]


def refuses(value, annotation):
    def component(given):
        return given

    component.__annotations__["given"] = annotation
    try:
        check_arguments(component, {"given": value}, "here")
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (int, [1], ["1", 1.5, True, None, [1], {"a": 1}]),
        ("int", [1], ["1", None]),
        (float, [1, 1.5], ["1e-3", True, None, [1.0], {"value": 1.0}]),
        (bool, [True, False], ["true", 0, 1, 2, None, []]),
        (str, ["a"], [1, None, ["a"], {"a": 1}]),
        (None, [None], [0, "None"]),
        (Optional[int], [1, None], ["1", {}]),
        (Union[int, str], [1, "a"], [1.5, None, []]),
        (Literal["norm", 2], ["norm", 2], ["value", 2.0, True]),
        (Literal["norm"] | bool, ["norm", True], ["value", None]),
        (float | torch.Tensor, [0.1, torch.ones(())], [{"value": 0.1}, [0.1], "0.1"]),
        (Optional[torch.Tensor], [torch.ones(2), [0.1, 0.9], None], []),
        *(
            (annotation, _ANYTHING, [])
            for annotation in (Any, T, Sequence[int], dict, Path, nn.Module, int | list[int])
        ),
        (Callable[..., int], ["name", {"type": "name"}, len], []),
        ("NoSuchName", _ANYTHING, []),
    ],
    ids=str,
)
def test_plain_values_are_checked_against_simple_annotations(annotation, good, bad):
    assert [value for value in good if refuses(value, annotation)] == []
    assert [value for value in bad if not refuses(value, annotation)] == []
    assert not refuses(object(), annotation)


def annotated(width: "int", lid: "NoSuchName" = None, loss: float = None):  # noqa: ARG001, F821, RUF013
    return width


def by_default(width=3, rate=0.1, flag=False, name="a"):  # noqa: ARG001, FBT002
    return width


@pytest.mark.parametrize(
    ("component", "arguments", "message"),
    [
        (annotated, {"width": "3"}, r"here\.width: an integer is needed, got '3'\."),
        (annotated, {"width": {"value": 3}}, r"here\.width: an integer .*got \{'value': 3\}"),
        (by_default, {"rate": "0.1"}, r"here\.rate: a number is needed, got '0\.1'"),
        (by_default, {"flag": "yes"}, r"here\.flag: True or False is needed, got 'yes'"),
        (by_default, {"width": {}}, r"here\.width: an integer is needed, got \{\}"),
        (annotated, {"width": "x" * 500}, r"got 'x{119}\.\.\."),
        (annotated, {}, r"here\.width: annotated needs this argument; given: none"),
        (annotated, {"wdith": 3}, r"here\.wdith: unknown argument .*Did you mean 'width'"),
    ],
    ids=["text", "nested", "number", "flag", "dict", "long", "missing", "unknown"],
)
def test_an_argument_that_does_not_fit_is_named_by_its_path(component, arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_arguments(component, arguments, "here")


def test_what_cannot_be_checked_is_not_refused():
    check_arguments(annotated, {"width": 1, "lid": 5, "loss": None}, "here")
    check_arguments(by_default, {"width": (3, 3), "rate": [0.1], "flag": None, "name": 3}, "here")


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
