from collections import OrderedDict, defaultdict
from typing import NamedTuple

import pytest
import torch

from mm_dist import (
    ArgumentTypeError,
    ConfigError,
    cast_data_device,
    get_comm_device,
    get_data_device,
)

# Without an accelerator, 'meta' is the only other device; it holds no values.
META = torch.device("meta")


class Pair(NamedTuple):
    left: torch.Tensor
    right: tuple[torch.Tensor, ...]


def test_get_data_device_looks_into_nested_data():
    for data in (torch.ones(1), [torch.ones(1)], {"a": (torch.ones(1), [torch.ones(2)])}):
        assert get_data_device(data) == torch.device("cpu")
    assert get_data_device((torch.ones(1, device=META),)) == META


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ConfigError, "is empty"),
        ({"a": {}}, ConfigError, "is empty"),
        ([torch.ones(1), torch.ones(1, device=META)], ConfigError, "on cpu, meta; move them"),
        ([torch.ones(1), "text"], ArgumentTypeError, r"data\[1\] is <class 'str'>"),
        (3, ArgumentTypeError, "data is <class 'int'>"),
    ],
)
def test_get_data_device_says_why_there_is_no_answer(data, error, message):
    with pytest.raises(error, match=message):
        get_data_device(data)


@pytest.mark.usefixtures("group_of_one")
def test_get_comm_device_is_the_cpu_for_gloo():
    assert get_comm_device() == torch.device("cpu")


def test_cast_data_device_keeps_the_kinds_of_containers():
    default = defaultdict(list, b=[torch.ones(2)])
    data = OrderedDict(a=Pair(torch.ones(1), (torch.ones(3),)), b=default)
    moved = cast_data_device(data, "meta")
    assert type(moved) is OrderedDict
    assert type(moved["a"]) is Pair
    assert type(moved["b"]) is defaultdict
    assert moved["b"]["new"] == []
    moved["b"].pop("new")
    assert get_data_device(moved) == META
    assert get_data_device(data) == torch.device("cpu")


def test_cast_data_device_keeps_tensors_that_are_there_already():
    data = torch.ones(1)
    assert cast_data_device([data], torch.device("cpu"))[0] is data


def test_cast_data_device_fills_what_is_given_for_it():
    out = {"a": torch.zeros(2), "b": [torch.zeros(1)]}
    moved = cast_data_device({"a": torch.ones(2), "b": [torch.full((1,), 3.0)]}, "cpu", out=out)
    assert out["a"].tolist() == moved["a"].tolist() == [1, 1]
    assert out["b"][0].item() == 3


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("data", "out", "error", "message"),
    [
        ([ONE], [ONE, ONE], ConfigError, r"out has .*data\[1\].*, but data has .*data\[0\]'\]"),
        ({"a": ONE}, {"b": ONE}, ConfigError, r"out has .*\['b'\].*, but data has .*\['a'\]"),
        ([], None, ConfigError, "is empty"),
        ({}, None, ConfigError, "is empty"),
        ("text", None, ArgumentTypeError, "data is <class 'str'>"),
    ],
)
def test_cast_data_device_says_what_does_not_fit(data, out, error, message):
    with pytest.raises(error, match=message):
        cast_data_device(data, "cpu", out=out)
