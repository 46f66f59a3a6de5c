"""A model's own ``train_step`` in a wrapper that steps the model by itself."""

import re

import pytest
import torch
from torch import nn
from toy import NO_VALIDATION, Classifier, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.model import Supervised
from mm_runner.tools import make_plan

TORCHS = {"model_wrapper_cfg": {"type": "DistributedDataParallel"}}
SEPARATE = {"model_wrapper_cfg": {"type": "MMSeparateDistributedDataParallel"}}
UNCALLED = (
    r"The train_step of OwnStep is not called by MMDistributedDataParallel, which calls "
    r"forward\(mode='loss'\), data_preprocessor and parse_losses of the model: what else"
)
LACKS = (
    r"DistributedDataParallel trains by forward\(mode='loss'\).*; Bare has no data_preprocessor "
    r"and no parse_losses, and its train_step is not called\. .*BaseModel.*"
    r"MMSeparateDistributedDataParallel"
)


class OwnStep(Classifier):
    """Steps as its class before it does, and counts."""

    calls = 0

    @override
    def train_step(self, data, optim_wrapper):
        self.calls += 1
        return super().train_step(data, optim_wrapper)


class Bare(nn.Module):
    """Has a step, and no base class."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            loss = nn.functional.cross_entropy(self.layer(data["inputs"]), data["labels"])
        optim_wrapper.update_params(loss)
        return {"loss": loss.detach()}


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("model", "cfg", "wrapper"),
    [
        (OwnStep, {}, "MMDistributedDataParallel"),
        (OwnStep, TORCHS, "DistributedDataParallel"),
    ],
    ids=["own", "torch's wrapper"],
)
def test_a_step_that_is_not_called_is_told_once(make_runner, model, cfg, wrapper):
    runner = make_runner(model={"type": model}, cfg=cfg)
    runner.train()
    assert runner.model.module.calls == 0
    assert log_of(runner).count(f"The train_step of OwnStep is not called by {wrapper}, ") == 1


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("model", "cfg"),
    [
        ({"type": Classifier}, {}),
        (Supervised(nn.Linear(4, 3), nn.functional.cross_entropy), {}),
        ({"type": OwnStep}, SEPARATE),
        ({"type": Classifier}, TORCHS),
    ],
    ids=["BaseModel", "Supervised", "separate", "torch's"],
)
def test_one_that_is_called_or_is_ours_is_not_told(make_runner, model, cfg):
    runner = make_runner(model=model, cfg=cfg)
    assert "is not called" not in log_of(runner)


@pytest.mark.usefixtures("group_of_one")
def test_a_run_that_only_validates_is_not_told(make_runner):
    training = dict.fromkeys(("train_dataloader", "train_cfg", "optim_wrapper"))
    runner = make_runner(model={"type": OwnStep}, **training)
    runner.val()
    assert "is not called" not in log_of(runner)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("cfg", [{}, TORCHS], ids=["default", "torch's wrapper"])
def test_a_model_that_cannot_be_stepped_is_refused_before_the_first_step(make_runner, cfg):
    with pytest.raises(ConfigError, match=LACKS):
        make_runner(model={"type": Bare}, cfg=cfg, **NO_VALIDATION).train()


def _train_separately(rank, work_dir):
    del rank
    torch.manual_seed(0)
    for model in (Bare, OwnStep):
        arguments = runner_arguments(
            f"{work_dir}/{model.__name__}", model={"type": model}, cfg=SEPARATE, **NO_VALIDATION
        )
        runner = Runner(**arguments)
        runner.train()
        assert runner.iter == 6


def test_the_remedy_that_is_named_trains(run_ranks, tmp_path):
    run_ranks(_train_separately, 2, tmp_path)


def test_a_plan_of_several_processes_tells_it(tmp_path):
    def told(world_size, **more):
        lines = make_plan({**arguments, **more}, world_size=world_size).splitlines()
        return [line for line in lines if re.match(f"note +{UNCALLED}", line)]

    arguments = runner_arguments(tmp_path, model={"type": OwnStep})
    assert told(1) == told(2, **SEPARATE) == []
    (note,) = told(2)
    assert "MMSeparateDistributedDataParallel" in note
