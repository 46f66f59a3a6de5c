"""Loading and resuming by the Runner's own methods, in scripts and in subclasses."""

import pytest
import torch
from toy import NO_VALIDATION, Classifier, Killed, RecordRates, StopBeforeEpoch, weights_of

from mm_runner import CheckpointError, ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook

OPTIONS = {
    "model": {"type": Classifier, "dropout": 0.5},
    "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
    "param_scheduler": {"type": "MultiStepLR", "milestones": [1, 2], "gamma": 0.5},
    "train_cfg": {"by_epoch": True, "max_epochs": 3},
}


@pytest.fixture
def whole(make_runner, tmp_path):
    """A run of three epochs; its first checkpoint is ``epoch_1.pth``."""
    runner = make_runner(work_dir=tmp_path / "whole", **OPTIONS)
    runner.train()
    return runner


def first_of(runner):
    return runner.work_dir / "epoch_1.pth"


def test_a_script_resumes_from_any_file(make_runner, whole):
    rates = RecordRates()
    runner = make_runner(**OPTIONS, custom_hooks=[rates])
    runner.resume(str(first_of(whole)))
    saved = load_checkpoint_file(first_of(whole))["state_dict"]
    assert torch.equal(runner.model.layers[0].weight, saved["layers.0.weight"])
    assert (runner.epoch, runner.iter) == (1, 6)  # of the weights
    runner.train()
    assert (runner.epoch, runner.iter) == (3, 18)
    assert rates.rates == pytest.approx([0.05] * 6 + [0.025] * 6)
    assert torch.equal(weights_of(runner), weights_of(whole))
    runner.train()  # which is another training, from its own start
    assert len(rates.rates) == 12 + 18


def test_a_script_may_resume_from_another_file_than_the_runner_was_told(make_runner, whole):
    options = {**OPTIONS, "load_from": str(whole.work_dir / "epoch_2.pth"), "resume": True}
    runner = make_runner(**options, custom_hooks=[StopBeforeEpoch(1)])
    assert runner.train_loop is not None
    runner.resume(first_of(whole))
    with pytest.raises(Killed):
        runner.train()
    assert runner.epoch == 1


@pytest.mark.parametrize(
    ("left_out", "second_rate"), [("resume_optimizer", 0.05), ("resume_param_scheduler", 0.1)]
)
def test_what_a_script_leaves_out_begins_anew(make_runner, left_out, second_rate):
    rates, momenta = RecordRates(), []

    class Momenta(Hook):
        def before_train_iter(self, runner, *_, **__):
            momenta.append(len(runner.optim_wrapper.optimizer.state))

    options = {**OPTIONS, "param_scheduler": {"type": "MultiStepLR", "milestones": [2]}}
    options["param_scheduler"]["gamma"] = 0.5
    first = make_runner(**options)
    first.train()
    runner = make_runner(**options, custom_hooks=[rates, Momenta()])
    runner.resume(first_of(first), **{left_out: False}, map_location="cpu")
    runner.train()
    assert (momenta[0] == 0) is (left_out == "resume_optimizer")
    assert rates.rates == pytest.approx([0.1] * 6 + [second_rate] * 6)
    assert not torch.equal(weights_of(runner), weights_of(first))
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "has no optimizer state" not in log
    assert "Resumed after epoch 1, step 6" in log


def test_a_training_under_way_cannot_be_sent_elsewhere(make_runner, whole):
    class Back(Hook):
        def after_train_epoch(self, runner):
            runner.resume(first_of(whole))

    with pytest.raises(ConfigError, match=r"^resume\('.*epoch_1\.pth'\) was called while training"):
        make_runner(**OPTIONS, custom_hooks=[Back()]).train()


def test_a_script_loads_what_the_runner_was_told_to_begin_with(make_runner, whole):
    loaded = []

    class Loaded(Hook):
        def after_load_checkpoint(self, runner, checkpoint):
            loaded.append((runner.is_resuming, checkpoint["meta"]["epoch"]))

    options = {**OPTIONS, "load_from": str(first_of(whole))}
    runner = make_runner(**options, custom_hooks=[Loaded()])
    runner.load_or_resume()
    runner.load_or_resume()
    assert loaded == [(False, 1)]
    saved = load_checkpoint_file(first_of(whole))["state_dict"]
    assert torch.equal(runner.model.layers[0].weight, saved["layers.0.weight"])
    runner.train()
    assert (len(loaded), runner.iter) == (1, 18)

    runner = make_runner(**options, resume=True, custom_hooks=[Loaded()])
    runner.load_or_resume()
    runner.train()
    runner.val()
    assert loaded == [(False, 1), (False, 1), (True, 1)]
    assert torch.equal(weights_of(runner), weights_of(whole))
    make_runner().load_or_resume()  # nothing


def test_a_script_that_resumes_what_does_not_fit_is_told(make_runner, whole):
    class Other(Classifier):
        def __init__(self):
            super().__init__()
            self.more = torch.nn.Linear(2, 2)

    runner = make_runner(model=Other(), **NO_VALIDATION)
    with pytest.raises(CheckpointError, match="more"):
        runner.resume(first_of(whole))
    runner.train()
    assert runner.iter == 12
