from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from mm_amp import ConfigError
from mm_amp._batch_parts import BatchSplitter


class Pair(NamedTuple):
    inputs: Any
    targets: Any


@dataclass
class Sample:
    image: Any
    name: Any


def _split(batch, size):
    return [part for part, _ in BatchSplitter()(batch, size)]


def _column(*values):
    return torch.tensor(values).unsqueeze(1)


def test_tensors_anywhere_are_cut_and_the_rest_goes_to_every_part():
    inputs = torch.arange(12.0).view(3, 4)
    batch = {
        "inputs": inputs,
        "labels": (torch.tensor([0, 1, 2]), [inputs * 2, inputs * 3]),
        "names": ["a", "b", "c"],
        "boxes": [torch.zeros(2, 4), torch.zeros(0, 4), torch.ones(5, 4)],
        "num_items": torch.tensor(7),
        "positions": torch.arange(4).unsqueeze(0),
        "classes": ["cat", "dog"],
        "mode": "train",
        "nothing": None,
        "empty": [],
    }
    (first, num_first), (second, num_second) = BatchSplitter()(batch, 2)
    assert (num_first, num_second) == (1, 2)
    torch.testing.assert_close(first["inputs"], inputs[:1])
    torch.testing.assert_close(second["labels"][0], torch.tensor([1, 2]))
    assert isinstance(second["labels"], tuple)
    torch.testing.assert_close(second["labels"][1][1], inputs[1:] * 3)
    assert (first["names"], second["names"]) == (["a"], ["b", "c"])
    assert [len(boxes) for boxes in second["boxes"]] == [0, 5]
    for part in (first, second):
        assert part["num_items"] is batch["num_items"]
        assert part["positions"] is batch["positions"]
        assert part["classes"] == ["cat", "dog"]
        assert (part["mode"], part["nothing"], part["empty"]) == ("train", None, [])


def test_nothing_is_copied_and_a_whole_batch_stays_what_it_is():
    batch = (torch.arange(6.0).view(6, 1), torch.zeros(6))
    (whole,) = _split(batch, None)
    assert whole is batch
    (whole,) = _split(batch, 6)
    assert whole is batch
    parts = _split(batch, 2)
    batch[0].fill_(7)
    assert [part[0].unique().tolist() for part in parts] == [[7]] * 3


@pytest.mark.parametrize(("num", "size", "sizes"), [
    (8, 8, [8]), (8, 3, [2, 3, 3]), (9, 4, [3, 3, 3]), (5, 1, [1] * 5), (7, 2, [1, 2, 2, 2]),
])  # fmt: skip
def test_parts_are_as_equal_as_can_be(num, size, sizes):
    parts = BatchSplitter()(torch.zeros(num, 2), size)
    assert [number for _, number in parts] == [len(part) for part, _ in parts] == sizes


@pytest.mark.parametrize("kind", ["mapping", "default", "namedtuple", "dataclass"])
def test_containers_keep_their_type(kind):
    column = _column(1, 2)
    batch = {
        "mapping": OrderedDict(x=column),
        "default": defaultdict(list, x=column),
        "namedtuple": Pair(column, column),
        "dataclass": Sample(column, ["a", "b"]),
    }[kind]
    first, second = _split(batch, 1)
    assert type(first) is type(second) is type(batch)
    if kind == "default":
        assert second["more"] == []
        assert "more" not in batch
    if kind == "dataclass":
        assert (second.name, second.image.tolist()) == (["b"], [[2]])
    if kind == "namedtuple":
        assert second.targets.tolist() == [[2]]


def test_two_tensors_of_two_samples_are_inputs_and_targets():
    first, _ = _split([_column(1, 2), _column(3, 4)], 1)
    assert [tensor.tolist() for tensor in first] == [[[1]], [[3]]]


def test_an_uncollated_list_of_dicts_is_one_per_sample():
    samples = [{"image": torch.zeros(3, height, 2), "id": height} for height in (1, 2, 3)]
    parts = _split(samples, 1)
    assert [[sample["id"] for sample in part] for part in parts] == [[1], [2], [3]]


def test_lists_of_tensors_and_objects_are_counted_by_the_objects():
    images = [torch.zeros(3, side, side) for side in (4, 5, 6, 7)]
    batch = {"inputs": images, "data_samples": [object() for _ in images]}
    first, second = _split(batch, 2)
    assert [len(one["data_samples"]) for one in (first, second)] == [2, 2]
    assert second["inputs"] == images[2:]
    (part, *_) = _split(((_column(1, 2), _column(1, 2)), (_column(3, 4), _column(5, 6))), 1)
    assert [[one.tolist() for one in pair] for pair in part] == [[[[1]], [[1]]], [[[3]], [[5]]]]


def test_a_list_that_could_be_both_is_read_as_before():
    split = BatchSplitter()

    def batch(num):
        return {"images": [torch.zeros(3, 2, 2) for _ in range(num)], "y": torch.zeros(num)}

    split(batch(5), 1)
    parts = split(batch(3), 1)  # three images with three channels
    assert [len(part["images"]) for part, _ in parts] == [1, 1, 1]
    assert parts[0][0]["images"][0].shape == (3, 2, 2)

    pyramids = BatchSplitter()

    def levels(num):
        return {"levels": [torch.zeros(num, side) for side in (4, 2, 1)], "y": torch.zeros(num)}

    pyramids(levels(5), 1)
    parts = pyramids(levels(3), 1)  # three levels of three samples
    assert [len(part["levels"]) for part, _ in parts] == [3, 3, 3]


class _Array:
    """Stands in for an array of another library."""

    def __init__(self, values):
        self._values = values
        self.shape, self.ndim = (len(values),), 1

    def __getitem__(self, part):
        return self._values[part]


def test_arrays_of_other_libraries_are_cut_too():
    first, second = _split({"x": torch.zeros(2), "y": _Array([5, 6])}, 1)
    assert (first["y"], second["y"]) == ([5], [6])


@pytest.mark.parametrize(
    ("batch", "match"),
    [
        (
            {"x": torch.zeros(4, 2), "y": torch.zeros(3)},
            r"disagree.*batch\['x'\] \(4, 2\), .*\(3,\)",
        ),
        ({"x": torch.zeros(4, 2), "y": [torch.zeros(3), 1]}, r"batch\['y'\]\[0\] has shape \(3,\)"),
        ({"x": torch.tensor(1.0)}, "does not show how many samples it has"),
        ({"x": torch.zeros(0, 2)}, "does not show"),
        ("text", "holds no tensors"),
    ],
)
def test_batches_that_cannot_be_cut_are_named(batch, match):
    with pytest.raises(ConfigError, match=match):
        _split(batch, 2)
