"""A small classification task, importable by spawned ranks."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner.evaluator import BaseMetric
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel


class Blobs(Dataset):
    """``size`` points of three classes: dicts with ``inputs`` of shape ``(4,)`` and ``labels``."""

    def __init__(self, size=24, noise=0.0):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(size) % 3
        self.inputs = torch.randn(size, 4, generator=generator)
        self.inputs[torch.arange(size), self.labels] += 4
        self.noise = noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        inputs = self.inputs[index]
        if self.noise:
            inputs = inputs + self.noise * torch.randn(4)
        return {"inputs": inputs, "labels": self.labels[index]}


class Classifier(BaseModel):
    """Two layers and a cross entropy."""

    def __init__(self, dropout=0.0, data_preprocessor=None):
        super().__init__(data_preprocessor)
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
        )

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.layers(inputs)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


class Scripted(BaseMetric):
    """Reports the given values, one per validation, and counts the samples it was given."""

    def __init__(self, *, name="accuracy", values=(), **kwargs):
        super().__init__(**kwargs)
        self.name = name
        self.values = list(values)
        self.sizes = []

    @override
    def process(self, data_batch, data_samples):
        self.results.extend(data_batch["labels"].tolist())

    def compute_metrics(self, results):
        self.sizes.append(len(results))
        return {self.name: self.values.pop(0)}


class StopBeforeEpoch(Hook):
    """Ends a run as a kill would: before it trains ``epoch``, counted from 0."""

    def __init__(self, epoch):
        self.epoch = epoch

    @override
    def before_train_epoch(self, runner):
        if runner.epoch == self.epoch:
            raise Killed


class Killed(Exception):  # noqa: N818 - not an error
    """What StopBeforeEpoch raises."""


class RecordRates(Hook):
    """Keeps the learning rate of every training step."""

    def __init__(self):
        self.rates = []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.rates.append(runner.optim_wrapper.param_groups[0]["lr"])


def log_of(runner):
    """Return the text of the log of a run."""
    return next(runner.log_dir.glob("*.log")).read_text()


def scalars_of(runner):
    """Return the records of ``scalars.jsonl`` of a run."""
    lines = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def weights_of(runner):
    """Return the state of the model of a run as one vector."""
    return torch.cat([value.flatten() for value in runner.model.state_dict().values()])


def loader_cfg(size=24, batch_size=4, **options):
    return {
        "dataset": Blobs(size),
        "batch_size": batch_size,
        "collate_fn": "default_collate",
        **options,
    }


def runner_arguments(work_dir, **overrides):
    """Arguments of a Runner that trains two epochs of six steps each, with a validation.

    A test may train several times in one directory.
    """
    arguments = {
        "model": {"type": Classifier},
        "work_dir": str(work_dir),
        "overwrite": True,
        "train_dataloader": loader_cfg(),
        "train_cfg": {"by_epoch": True, "max_epochs": 2},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.1}},
        "val_dataloader": loader_cfg(size=9),
        "val_cfg": {},
        "val_evaluator": {"type": "Accuracy"},
        "randomness": {"seed": 0},
    }
    return {**arguments, **overrides}


# The training part of these arguments, as a file.
TRAINING_YAML = """
model: {type: "toy:Classifier"}
train_dataloader:
  dataset: {type: "toy:Blobs", size: 24}
  batch_size: 4
  collate_fn: default_collate
train_cfg: {by_epoch: true, max_epochs: 2}
optim_wrapper: {optimizer: {type: SGD, lr: 0.1}}
randomness: {seed: 0}
"""
needs_compile = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="torch.compile needs torch 2.0"
)
# Float16 autocast on the CPU came with torch 2.4.
CPU_LOW_PRECISION = "float16" if hasattr(torch, "get_autocast_dtype") else "bfloat16"
NO_VALIDATION = {"val_dataloader": None, "val_cfg": None, "val_evaluator": None}
