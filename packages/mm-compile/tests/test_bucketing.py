import itertools
from typing import NamedTuple

import pytest
import torch
from toy import needs_compile

from mm_compile import BucketingCollate, ConfigError, compile_model
from mm_compile._bucketing import choose_sizes


class Pair(NamedTuple):
    label: int
    tokens: torch.Tensor


def test_samples_are_padded_to_the_smallest_size_that_holds_the_batch():
    collate = BucketingCollate([4, 8])
    batch = collate([torch.tensor([1, 2]), torch.tensor([3])])
    assert batch.tolist() == [[1, 2, 0, 0], [3, 0, 0, 0]]
    assert collate([torch.ones(5), torch.ones(2)]).shape == (2, 8)


def test_named_tensors_are_padded_with_their_own_values_and_the_rest_is_collated():
    collate = BucketingCollate(
        [(2, 4), (4, 4)],
        dims=(-2, -1),
        pad_values={"image": 0.5, "mask": 255},
        length_key="size",
        collate=list,
    )
    sample = {"image": torch.zeros(3, 2, 3), "mask": torch.zeros(2, 3).long(), "label": 1}
    (padded,) = collate([sample])
    assert padded["image"].shape == (3, 2, 4)
    assert padded["image"][..., 3].eq(0.5).all()
    assert padded["image"][..., :3].eq(0).all()
    assert padded["mask"][:, 3].tolist() == [255, 255]
    assert padded["size"] == (2, 3)
    assert padded["label"] == 1
    assert sample["image"].shape == (3, 2, 3)  # not changed in place
    assert "size" not in sample


def test_positions_of_tuples_are_padded():
    collate = BucketingCollate([3], pad_values={0: 0.0})
    tokens, labels = collate([(torch.ones(2), 7), (torch.ones(1), 8)])
    assert tokens.tolist() == [[1, 1, 0], [1, 0, 0]]
    assert labels.tolist() == [7, 8]


def test_a_position_may_be_counted_from_the_end_and_a_named_tuple_stays_one():
    collate = BucketingCollate([3], pad_values={-1: -100})
    batch = collate([Pair(7, torch.tensor([1, 2])), Pair(8, torch.tensor([3]))])
    assert isinstance(batch, Pair)
    assert batch.tokens.tolist() == [[1, 2, -100], [3, -100, -100]]


def test_arrays_of_numpy_are_padded_to_tensors():
    numpy = pytest.importorskip("numpy")
    collate = BucketingCollate([3], pad_values={"ids": 9}, length_key="len")
    batch = collate([{"ids": numpy.arange(2)}, {"ids": numpy.arange(1)}])
    assert batch["ids"].tolist() == [[0, 1, 9], [0, 9, 9]]
    assert batch["len"].tolist() == [2, 1]
    assert BucketingCollate([2])([numpy.ones(1)]).tolist() == [[1, 0]]


def test_a_batch_may_be_one_tensor():
    assert BucketingCollate([4, 8])(torch.ones(2, 3)).shape == (2, 4)


def test_a_dict_that_has_any_attribute_is_a_dict():
    class Permissive(dict):
        def __getattr__(self, name):
            return self.get(name)

    samples = [Permissive(image=torch.ones(3)) for _ in range(2)]
    assert BucketingCollate([4, 8], pad_values={"image": 0.0})(samples)["image"].shape == (2, 4)


def test_samples_that_are_tensors_are_padded_with_the_value_of_none():
    collate = BucketingCollate([2], pad_values={None: -100})
    assert collate([torch.tensor([1])]).tolist() == [[1, -100]]


@pytest.mark.parametrize("num_buckets", [1, 2, 3, 9])
def test_sizes_are_those_that_pad_least(num_buckets):
    lengths = [3, 3, 3, 4, 9, 9, 10, 17]

    def padded(sizes):
        return sum(min(size for size in sizes if size >= length) for length in lengths)

    chosen = choose_sizes(lengths, num_buckets)
    assert len(chosen) <= num_buckets
    assert chosen == sorted(chosen)
    values = sorted(set(lengths))
    best = min(
        padded(sizes)
        for number in range(1, min(num_buckets, len(values)) + 1)
        for sizes in itertools.combinations(values, number)
        if sizes[-1] == 17
    )
    assert padded(chosen) == best


def test_what_cannot_be_padded_is_refused_in_words():
    with pytest.raises(ValueError, match=r"size \(5,\) in dimensions \(0,\).*Add a larger size"):
        BucketingCollate([2, 4])([torch.ones(5)])
    with pytest.raises(ConfigError, match="samples of type dict and no pad_values"):
        BucketingCollate([2])([{"x": torch.ones(1)}])
    with pytest.raises(ConfigError, match="as many whole numbers above 0 as there are dims"):
        BucketingCollate([2, 4], dims=(0, 1))
    with pytest.raises(ConfigError, match="0 lengths and num_buckets=2"):
        BucketingCollate.from_lengths([], 2)


@pytest.mark.parametrize(
    ("arguments", "samples", "message"),
    [
        ({}, [], "a batch of no samples"),
        ({"pad_values": {"x": 0}}, [{"y": 1}], r"pads 'x' .* no such part: the keys \['y'\]"),
        ({"pad_values": {1: 0}}, [(torch.ones(2),)], "pads 1 of each sample.*no such part"),
        ({"pad_values": {"x": 0}}, [(torch.ones(2),)], "pads 'x' of each sample.*no such part"),
        ({"pad_values": {"x": 0}}, [{"x": [1, 2]}], "'x' of a sample is of type list. Make it a"),
        ({"dims": (3,)}, [torch.ones(3)], r"dimensions \(3,\), but a sample has the shape \(3,\)"),
        ({"dims": (-2,)}, [torch.ones(3)], r"dimensions \(-2,\), but a sample has the shape"),
        ({}, [torch.tensor(1.0)], r"but a sample has the shape \(\)"),
        ({"length_key": "len"}, [torch.ones(2)], "samples of type Tensor. Make them dicts"),
        (
            {"length_key": "len", "pad_values": {0: 0}},
            [(torch.ones(2), 1)],
            "length_key='len'.*samples of type tuple",
        ),
        ({"pad_values": {0: 9}}, [torch.ones(2)], r"or write \{None: value\}"),
    ],
)
def test_samples_that_are_not_as_configured_are_refused_in_words(arguments, samples, message):
    with pytest.raises(ConfigError, match=message):
        BucketingCollate([4], **arguments)(samples)


def test_an_array_of_objects_is_refused_in_words():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ConfigError, match=r"arrays of numbers.*of type ndarray"):
        BucketingCollate([4])([numpy.array([None])])


@pytest.mark.parametrize("arguments", [{"dims": 0}, {"dims": "x"}, {"pad_values": 255}])
def test_arguments_of_another_type_are_refused(arguments):
    with pytest.raises(ConfigError, match=f"got {next(iter(arguments))}=.* it takes"):
        BucketingCollate([4], **arguments)


@pytest.mark.parametrize("sizes", [[], 4, [4.0], ["4"], [0], [(4, 4)]])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(ConfigError, match="it takes at least one size"):
        BucketingCollate(sizes)


def test_the_smallest_size_is_taken_in_whatever_order_they_are_given():
    assert BucketingCollate([8, 4])([torch.ones(3)]).shape == (1, 4)
    collate = BucketingCollate([(8, 8), (2, 16), (4, 4)], dims=(0, 1))
    assert collate([torch.ones(2, 3)]).shape == (1, 4, 4)


@needs_compile
def test_a_model_sees_at_most_as_many_shapes_as_there_are_buckets(model, backend):
    collate = BucketingCollate.from_lengths([5, 6, 7, 8, 9, 10], 2)
    compile_model(model, {"backend": backend, "dynamic": False, "on_recompile": "raise"})
    for length in (5, 6, 7, 8, 9, 10):
        model(collate([torch.randn(length, 4)]))
    assert backend.graphs == 2
