"""A model's own ``train_step`` in a wrapper that steps the model by itself."""

import re

import pytest
from torch import nn
from toy import NO_VALIDATION, Classifier, log_of, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.model import Supervised
from mm_runner.tools import make_plan

TORCHS = {"model_wrapper_cfg": {"type": "DistributedDataParallel"}}
SEPARATE = {"model_wrapper_cfg": {"type": "MMSeparateDistributedDataParallel"}}
UNCALLED = r"MMDistributedDataParallel trains by .*; the train_step of OwnStep is not called\."
LACKS = (
    r"^Bare has no data_preprocessor and no parse_losses: \w*DistributedDataParallel trains by "
    r"forward\(mode='loss'\).*BaseModel.*MMSeparateDistributedDataParallel"
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


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("cfg", [{}, TORCHS], ids=["ours", "torch's wrapper"])
def test_a_step_that_is_not_called_is_told_once(make_runner, cfg):
    runner = make_runner(model={"type": OwnStep}, cfg=cfg)
    runner.train()
    assert runner.model.module.calls == 0
    assert log_of(runner).count("the train_step of OwnStep is not called.") == 1


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    ("model", "cfg"),
    [
        (Supervised(nn.Linear(4, 3), nn.functional.cross_entropy), {}),
        ({"type": OwnStep}, SEPARATE),
    ],
    ids=["Supervised", "separate"],
)
def test_one_that_is_called_or_is_ours_is_not_told(make_runner, model, cfg):
    runner = make_runner(model=model, cfg=cfg)
    assert "is not called" not in log_of(runner)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("cfg", [{}, TORCHS], ids=["default", "torch's wrapper"])
def test_a_model_that_cannot_be_stepped_is_refused_before_the_first_step(make_runner, cfg):
    with pytest.raises(ConfigError, match=LACKS):
        make_runner(model={"type": Bare}, cfg=cfg, **NO_VALIDATION).train()


def test_a_plan_of_several_processes_tells_it(tmp_path):
    def told(world_size, **more):
        lines = make_plan({**arguments, **more}, world_size=world_size).splitlines()
        return [line for line in lines if re.match(f"note +{UNCALLED}", line)]

    arguments = runner_arguments(tmp_path, model={"type": OwnStep})
    assert told(1) == told(2, **SEPARATE) == []
    (note,) = told(2)
    assert "MMSeparateDistributedDataParallel" in note
