"""Datasets joined, repeated and balanced: alone, in loaders, in runs that stop and go on."""

import math
import pickle

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset
from toy import Blobs
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.data import (
    ClassBalancedDataset,
    ConcatDataset,
    RepeatDataset,
)
from mm_runner.registry import DATASETS


class Labelled(Dataset):
    """Samples are ``(name, index)``; ``cats`` lists the categories of each."""

    def __init__(self, name="a", size=3, cats=None, metainfo=None):
        self.name, self.size, self.cats = name, size, cats
        self.num_asked = self.num_inits = 0
        if metainfo is not None:
            self.metainfo = metainfo

    def full_init(self):
        self.num_inits += 1

    def __len__(self):
        assert self.num_inits, "asked before full_init()"
        return self.size

    @override
    def __getitem__(self, index):
        assert 0 <= index < self.size
        return self.name, index

    def get_cat_ids(self, index):
        self.num_asked += 1
        return self.cats[index]

    def get_data_info(self, index):
        return {"sample": (self.name, index)}


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(3))

    def __len__(self):
        return 3


def test_concatenated_datasets_follow_one_another():
    parts = [Labelled("a", 3), Labelled("empty", 0), ["x", "y"]]
    dataset = ConcatDataset(parts)
    samples = [("a", 0), ("a", 1), ("a", 2), "x", "y"]
    assert [dataset[index] for index in range(len(dataset))] == samples
    assert list(dataset) == samples  # Python's own protocol ends with an IndexError
    assert dataset[torch.tensor(-1)] == "y"
    assert dataset.cumulative_sizes == [3, 3, 5]
    assert dataset.get_data_info(2) == {"sample": ("a", 2)}
    for index in (5, -6):
        with pytest.raises(IndexError, match=rf"ConcatDataset: no sample {index}; there are 5"):
            dataset[index]


def test_the_samples_of_a_large_dataset_are_found_without_a_list():
    dataset = RepeatDataset(ConcatDataset([range(10**9), range(10**9, 10**9 + 5)]), 10**3)
    assert len(dataset) == 10**12 + 5_000
    assert dataset[10**12 + 4_999] == 10**9 + 4
    assert dataset[10**9 + 5] == 0
    assert len(pickle.dumps(dataset)) < 1_000  # what a worker is sent


def test_a_repeated_dataset_begins_anew_and_ends():
    dataset = RepeatDataset(Labelled("a", 2, cats=[[0], [1]], metainfo={"classes": ("a",)}), 3)
    assert list(dataset) == [("a", 0), ("a", 1)] * 3
    assert dataset.get_cat_ids(3) == [1]
    assert dataset.metainfo == {"classes": ("a",)}
    assert dataset.metainfo is not dataset.dataset.metainfo


def test_rare_categories_are_repeated_by_the_factor_of_lvis():
    # Of ten samples, 9 have category 0, 4 have 1, and only one has 2; the last one has none.
    cats = [[0], [0], [0], [0, 0], [0], [0, 1], [0, 1], [0, 1], [0, 1, 2], []]
    inner = Labelled("a", 10, cats=cats)
    dataset = ClassBalancedDataset(inner, oversample_thr=0.5)
    factor = {0: 1.0, 1: math.sqrt(0.5 / 0.4), 2: math.sqrt(0.5 / 0.1)}
    expected = []
    for index, categories in enumerate(cats):
        times = math.ceil(max([1.0, *(factor[one] for one in categories)]))
        expected += [("a", index)] * times
    assert list(dataset) == expected
    assert [expected.count(("a", index)) for index in range(10)] == [1, 1, 1, 1, 1, 2, 2, 2, 3, 1]
    assert inner.num_asked == 10
    assert dataset.get_cat_ids(len(dataset) - 2) == [0, 1, 2]


def test_metainfo_is_the_first_ones_and_has_to_agree():
    classes = {"classes": ("cat", "dog"), "palette": torch.tensor([1, 2])}
    same = {"classes": ("cat", "dog"), "palette": torch.tensor([1, 2])}
    joined = ConcatDataset([Labelled(metainfo=classes), Labelled(metainfo=same)])
    assert joined.metainfo["classes"] == ("cat", "dog")
    assert ConcatDataset([Labelled()]).metainfo is None
    other = {**same, "palette": torch.tensor([1, 3])}
    with pytest.raises(ConfigError, match=r"datasets\[1\]: 'palette' of the metainfo is"):
        ConcatDataset([Labelled(metainfo=classes), Labelled(metainfo=other)])
    with pytest.raises(ConfigError, match=r"'classes' of the metainfo is None, and \('cat"):
        ConcatDataset([Labelled(metainfo=classes), Blobs()])
    ignored = ConcatDataset(
        [Labelled(metainfo=classes), Labelled(metainfo=other)], ignore_keys="palette"
    )
    assert ignored.metainfo["palette"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConcatDataset([]), r"datasets: a list of datasets.*at least one.*got \[\]"),
        (lambda: ConcatDataset("ab"), r"datasets: a list of datasets.*got 'ab'"),
        (lambda: ConcatDataset([[1], 3]), r"datasets\[1\]: a dataset with a length.*got 3"),
        (lambda: ConcatDataset([Endless()]), r"datasets\[0\]: a dataset with a length and ind"),
        (lambda: RepeatDataset([1], 0), r"times: an integer >= 1 is needed, got 0"),
        (lambda: RepeatDataset(None, 2), r"dataset: a dataset with a length.*got None"),
        (lambda: ClassBalancedDataset([1], 0.1), r"get_cat_ids\(index\) is needed; list has"),
        (lambda: ClassBalancedDataset(Labelled(), 5), r"oversample_thr: a share.*at most 1.*got 5"),
        (lambda: ClassBalancedDataset(Labelled(), 0.0), r"oversample_thr: a share.*got 0\.0"),
    ],
)
def test_what_is_wrong_with_the_arguments_is_said(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_wrappers_are_built_by_name_within_one_another():
    cfg = {
        "type": "RepeatDataset",
        "times": 2,
        "dataset": {
            "type": "ConcatDataset",
            "datasets": [
                {"type": Labelled, "name": "a", "size": 2},
                {
                    "type": "ClassBalancedDataset",
                    "oversample_thr": 1,
                    "dataset": Labelled("b", 2, cats=[[0], [1]]),
                },
            ],
        },
    }
    dataset = DATASETS.build(cfg)
    assert list(dataset) == [("a", 0), ("a", 1), *[("b", 0)] * 2, *[("b", 1)] * 2] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": -1}, r"^train_dataloader\.dataset\.times: an integer >= 1 is needed, got -1"),
        (
            {"dataset": {"type": "ConcatDataset", "datasets": [[1], {"type": Blobs, "sizes": 3}]}},
            r"^train_dataloader\.dataset\.dataset\.datasets\[1\]\.sizes: unknown argument of Blobs",
        ),
        (
            {"dataset": {"type": "ConcatDatset", "datasets": []}},
            r"^train_dataloader\.dataset\.dataset\.type: No dataset named .*mean 'ConcatDataset'",
        ),
    ],
    ids=["negative", "inner-argument", "inner-type"],
)
def test_an_error_begins_with_the_path_in_the_configuration(make_runner, change, message):
    dataset = {"type": "RepeatDataset", "times": 2, "dataset": [1], **change}
    with pytest.raises((ConfigError, LookupError), match=message):
        make_runner(train_dataloader={"dataset": dataset, "batch_size": 2}).train()
