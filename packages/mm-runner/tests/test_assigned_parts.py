"""Parts may be assigned before train(), as plain attributes; afterwards that is an error."""

import pytest
import torch
from own_loops import OwnEpoch
from test_resume_midway import Seen
from torch import nn
from toy import NO_VALIDATION, Classifier

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.loops import ValLoop
from mm_runner.optim import OptimWrapper

SGD = {"optimizer": {"type": "SGD", "lr": 0.05}}


def test_an_assigned_optimizer_wrapper_is_trained_with(make_runner):
    runner = make_runner()
    wrapper = OptimWrapper(torch.optim.SGD(runner.model.parameters(), lr=0.05))
    runner.optim_wrapper = wrapper
    runner.train()
    assert runner.optim_wrapper is wrapper
    expected = make_runner(optim_wrapper=SGD)
    expected.train()
    assert torch.equal(*(one.model.layers[0].weight for one in (runner, expected)))


def test_a_config_that_is_assigned_is_built(make_runner):
    runner = make_runner()
    runner.optim_wrapper = SGD
    runner.param_schedulers = {"type": "StepLR", "step_size": 1, "gamma": 0.1}
    runner.train_loop = {"type": OwnEpoch, "max_epochs": 3}
    runner.train()
    assert isinstance(runner.train_loop, OwnEpoch)
    assert runner.epoch == 3
    assert runner.optim_wrapper.param_groups[0]["lr"] == pytest.approx(0.05 * 0.1**2)


def test_a_loop_and_schedules_that_a_script_builds_are_trained_with(make_runner):
    runner = make_runner(**NO_VALIDATION)
    runner.train_loop = runner.build_train_loop({"by_epoch": False, "max_iters": 5})
    runner.optim_wrapper = runner.build_optim_wrapper(SGD)
    runner.param_schedulers = runner.build_param_scheduler(
        {"type": "ConstantLR", "factor": 0.5, "by_epoch": False}
    )
    seen = Seen()
    runner.register_hook(seen)
    runner.train()
    assert (runner.iter, len(seen.steps)) == (5, 5)


def test_a_model_that_is_assigned_is_trained(make_runner):
    runner = make_runner(**NO_VALIDATION)
    model = Classifier()
    before = model.layers[0].weight.detach().clone()
    runner.model = model
    assert runner.train() is model
    assert not torch.equal(model.layers[0].weight, before)


def test_reading_a_loop_early_changes_nothing(make_runner):
    early, late = make_runner(), make_runner()
    assert len(early.train_dataloader) == 6
    for runner in (late, early):
        torch.manual_seed(0)
        runner.train()
    assert torch.equal(*(one.model.layers[0].weight for one in (early, late)))


class Assigns(Hook):
    def __init__(self, name, stage):
        self.name = name
        setattr(self, stage, self.assign)

    def assign(self, runner, *_, **__):
        setattr(runner, self.name, getattr(runner, self.name))

    def before_run(self, runner): ...

    def before_train_epoch(self, runner): ...

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None): ...


@pytest.mark.parametrize("stage", ["before_run", "before_train_epoch", "after_train_iter"])
@pytest.mark.parametrize("name", ["model", "optim_wrapper", "param_schedulers", "train_loop"])
def test_a_part_that_is_assigned_while_training_is_an_error(make_runner, name, stage):
    runner = make_runner(**NO_VALIDATION)
    runner.register_hook(Assigns(name, stage))
    with pytest.raises(ConfigError, match=f"{name} was assigned while training.*before train"):
        runner.train()


def test_an_evaluation_loop_may_be_assigned_at_any_time(make_runner):
    runner = make_runner()
    runner.val_loop = runner.build_val_loop({})
    assert isinstance(runner.val_loop, ValLoop)
    assert set(runner.val()) == {"accuracy"}


def test_a_wrapper_over_another_model_is_refused(make_runner):
    runner = make_runner()
    runner.optim_wrapper = OptimWrapper(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="none of the 2 parameters"):
        runner.train()


def test_schedules_over_another_optimizer_are_refused(make_runner):
    runner, other = make_runner(), make_runner()
    other.optim_wrapper = other.build_optim_wrapper(SGD)
    runner.param_schedulers = other.build_param_scheduler({"type": "StepLR", "step_size": 1})
    with pytest.raises(ConfigError, match="over another SGD"):
        runner.train()


def test_a_loader_of_a_loop_is_assigned_to_the_loop(make_runner):
    runner = make_runner()
    with pytest.raises(AttributeError):
        runner.train_dataloader = []


def test_each_training_of_a_runner_begins_with_parts_of_its_own(make_runner):
    runner = make_runner(**NO_VALIDATION)
    runner.train()
    first = runner.optim_wrapper
    runner.train()
    assert runner.optim_wrapper is not first
    assert runner.iter == 12
