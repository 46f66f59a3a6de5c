"""What a dataloader's dataset may be: whatever torch's DataLoader draws samples from."""

import pytest
import torch
import yaml
from torch.utils.data import DataLoader
from toy import Blobs, runner_arguments

from mm_runner import ConfigError, Runner
from mm_runner.data import DataSettings, build_dataloader
from mm_runner.registry import DATASETS, build_from_cfg
from mm_runner.tools import make_plan

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
        (Duck(), 24),
        ({"type": as_list}, 24),
        ({"type": "RepeatDataset", "dataset": _SAMPLES, "times": 2}, 48),
        ({"type": "ConcatDataset", "datasets": [_SAMPLES, {"type": as_list}]}, 48),
        ({"type": "torch.utils.data:ConcatDataset", "datasets": [_SAMPLES, Duck()]}, 48),
        ({"type": "torch.utils.data:Subset", "dataset": _SAMPLES, "indices": list(range(12))}, 12),
    ],
    ids=["list", "duck", "function", "repeat", "concat", "torchs", "subset"],
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


class Joined:
    """Finds its samples by names."""

    def __init__(self, dataset=(), datasets=(), indices=()):
        self.names = [*dataset, *datasets, *indices]

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return _SAMPLES[index]


def config_of(runner):
    (path,) = runner.work_dir.glob("*/config.yaml")
    return path


def test_the_configuration_of_a_run_names_long_lists_of_data_by_their_length(make_runner):
    many = _SAMPLES * 50
    subset = {"type": "torch.utils.data:Subset", "dataset": many, "indices": list(range(1100))}
    runner = make_runner(
        train_dataloader=loader(many, sampler=list(range(1200))),
        val_dataloader=loader({"type": "ConcatDataset", "datasets": [tuple(many), [(7, 8)]]}),
        test_dataloader=loader(subset),
        test_evaluator={"type": "Accuracy"},
        test_cfg={},
    )
    text = config_of(runner).read_text()
    config = yaml.safe_load(text)
    assert config["train_dataloader"]["dataset"] == "<list of 1200 samples>"
    assert config["train_dataloader"]["sampler"] == "<list of 1200 samples>"
    assert config["val_dataloader"]["dataset"]["datasets"] == ["<tuple of 1200 samples>", [[7, 8]]]
    assert config["test_dataloader"]["dataset"]["indices"] == "<list of 1100 samples>"
    assert len(text) < 4000


def test_a_list_of_configs_is_no_dataset(tmp_path):
    configs = [{"type": "RepeatDataset", "dataset": _SAMPLES}, {"type": "RepeatDataset"}]
    message = r"a list of configs is no dataset, got 2, .*dict\(type=\"ConcatDataset\", datasets="
    arguments = runner_arguments(tmp_path / "run", train_dataloader=loader(configs))
    with pytest.raises(ConfigError, match=rf"^train_dataloader\.dataset: {message}"):
        make_plan(arguments)
    settings = DataSettings(0, torch.Generator(), 0, 1)
    with pytest.raises(ConfigError, match=rf"^here\.dataset: {message}"):
        build_dataloader(loader(configs), settings, shuffle=True, where="here")
    with pytest.raises(ConfigError, match=rf"dataset: {message}"):
        build_from_cfg({"type": "RepeatDataset", "dataset": configs, "times": 2}, DATASETS)


@pytest.mark.parametrize(
    "samples",
    [
        *([{"type": kind, "box": (1, 2)}] * 8 for kind in ("car", "os.name", "a/b.jpg", 3, None)),
        ["<unk>", "<first.name>", "<list of samples>", "<torch>"],
    ],
)
def test_samples_may_have_a_type_of_their_own_or_be_text(samples):
    settings = DataSettings(0, torch.Generator(), 0, 1)
    built = build_dataloader(loader(samples), settings, shuffle=True, where="here")
    assert built.dataset is samples


_NEEDED = r"^{}\.dataset: a dataset or a dict with 'type' is needed, got "


@pytest.mark.parametrize("name", ["train_dataloader", "val_dataloader"])
@pytest.mark.parametrize(
    "dataset",
    [
        *("blobs", b"blobs", "<list of 1200 samples>", None, 7, Duck, as_list, one_by_one()),
        *({1, 2}, OnlyGoneThrough(), DataLoader(Blobs()), {"type": as_parts}, {"type": str}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_dataset_is_refused_in_words(tmp_path, name, dataset):
    arguments = runner_arguments(tmp_path / "run", **{name: loader(dataset)})
    with pytest.raises(ConfigError, match=_NEEDED.format(name)):
        Runner.from_cfg(arguments).train()
