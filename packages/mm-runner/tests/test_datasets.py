"""What a dataloader's dataset may be: whatever torch's DataLoader draws samples from."""

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset
from toy import Blobs, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.registry import DATASETS, build_from_cfg, check_arguments

_SAMPLES = [Blobs()[index] for index in range(24)]


class Duck:
    """Of no certain class."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return _SAMPLES[index]


class OnlyGoneThrough:
    def __len__(self):
        return 24

    def __iter__(self):
        return iter(_SAMPLES)


class Stream(IterableDataset):
    @override
    def __iter__(self):
        return iter(_SAMPLES)


def as_list():
    return list(_SAMPLES)


def as_parts():
    return {"train": _SAMPLES, "test": _SAMPLES}


def one_by_one():
    yield from _SAMPLES


def loader(dataset, **options):
    return {"dataset": dataset, "batch_size": 4, "collate_fn": "default_collate", **options}


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (_SAMPLES, 24),
        (tuple(_SAMPLES), 24),
        (Duck(), 24),
        ({"type": as_list}, 24),
        ({"type": "test_datasets:as_list"}, 24),
        ({"type": "RepeatDataset", "dataset": _SAMPLES, "times": 2}, 48),
        ({"type": "ConcatDataset", "datasets": [_SAMPLES, {"type": as_list}]}, 48),
        ({"type": "torch.utils.data:ConcatDataset", "datasets": [_SAMPLES, Duck()]}, 48),
        ({"type": "torch.utils.data:Subset", "dataset": _SAMPLES, "indices": list(range(12))}, 12),
    ],
    ids=["list", "tuple", "duck", "function", "name", "repeat", "concat", "torchs", "subset"],
)
def test_any_list_of_samples_trains_validates_and_tests(make_runner, dataset, size):
    runner = make_runner(
        train_dataloader=loader(dataset),
        val_dataloader=loader(dataset),
        test_dataloader=loader(dataset),
        test_evaluator={"type": "Accuracy"},
        test_cfg={},
        train_cfg={"by_epoch": True, "max_epochs": 1},
    )
    runner.train()
    assert runner.iter == size // 4
    assert len(runner.train_dataloader.dataset) == size
    runner.test()


def test_a_list_is_the_loaders_dataset_itself_and_workers_draw_from_it(make_runner):
    runner = make_runner(
        train_dataloader=loader(_SAMPLES, num_workers=1),
        train_cfg={"by_epoch": False, "max_iters": 3},
    )
    runner.train()
    assert runner.train_dataloader.dataset is _SAMPLES


def test_a_stream_trains(make_runner):
    runner = make_runner(
        train_dataloader=loader(Stream()), train_cfg={"by_epoch": False, "max_iters": 3}
    )
    runner.train()
    assert runner.iter == 3


def test_the_configuration_of_a_run_names_lists_of_samples_by_their_length(make_runner):
    both = {"type": "ConcatDataset", "datasets": [_SAMPLES, tuple(_SAMPLES), {"type": as_list}]}
    runner = make_runner(train_dataloader=loader(_SAMPLES), val_dataloader=loader(both))
    (config,) = runner.work_dir.glob("*/config.yaml")
    text = config.read_text()
    assert "dataset: <list of 24 samples>" in text
    assert "- <tuple of 24 samples>" in text
    assert len(text) < 4000


_NEEDED = r"^{}\.dataset: a dataset or a dict with 'type' is needed, got "


@pytest.mark.parametrize("name", ["train_dataloader", "val_dataloader"])
@pytest.mark.parametrize(
    ("dataset", "hint"),
    [
        ("blobs", r"The name of one goes into a dict: dict\(type='blobs', \.\.\.\)\."),
        (b"blobs", r"IterableDataset\.$"),
        (None, r"None\. A dataset is a list of samples, an object with __getitem__\(index\) and"),
        (7, r"7\. A dataset is"),
        (Duck, r"dict\(type=Duck, \.\.\.\)"),
        (as_list, r"dict\(type=as_list, \.\.\.\)"),
        (one_by_one(), r"can only be gone through: make a list of it, or a class derived from"),
        ({1, 2}, r"can only be gone through"),
        (OnlyGoneThrough(), r"can only be gone through"),
        (DataLoader(Blobs()), r"A DataLoader goes in place of the whole dict"),
        ({"type": as_parts}, r"Of a dict of datasets, take one: 'train', 'test'\."),
        ({"type": one_by_one}, r"can only be gone through"),
        ({"type": str}, r"''\. A dataset is"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_dataset_is_refused_in_words(tmp_path, name, dataset, hint):
    arguments = runner_arguments(tmp_path / "run", **{name: loader(dataset)})
    with pytest.raises(ConfigError, match=_NEEDED.format(name) + f".*{hint}"):
        Runner.from_cfg(arguments).train()


def test_within_wrappers_too():
    for dataset in ({"type": as_parts}, {"type": one_by_one}, one_by_one(), Duck):
        cfg = {"type": "RepeatDataset", "dataset": dataset, "times": 2}
        with pytest.raises(ConfigError, match="dataset: a dataset with a length and indices, or"):
            build_from_cfg(cfg, DATASETS)


def test_a_component_that_asks_for_torchs_dataset_takes_a_list():
    def own(dataset: Dataset, other: Dataset[int] | None = None):
        return dataset, other

    check_arguments(own, {"dataset": _SAMPLES, "other": [1, 2]}, "own")
    with pytest.raises(ConfigError, match=r"^own\.other: a dataset is needed, got 'text'"):
        check_arguments(own, {"dataset": Duck(), "other": "text"}, "own")


def test_other_arguments_of_the_loader_are_checked_as_ever(tmp_path):
    for key, value in (("num_workers", "two"), ("num_wrokers", 2)):
        arguments = runner_arguments(
            tmp_path / "run", train_dataloader=loader(_SAMPLES, **{key: value})
        )
        with pytest.raises(ConfigError, match=rf"^train_dataloader\.{key}: "):
            Runner.from_cfg(arguments)
