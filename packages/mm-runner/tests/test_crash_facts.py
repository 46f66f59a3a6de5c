"""What a crash bundle says: batch, log, environment, memory."""

import json

import pytest
import torch
from crashing import Raise
from toy import NO_VALIDATION, Blobs, loader_cfg
from typing_extensions import override

from mm_runner.hooks import Hook


class MuteError(RuntimeError):
    """Cannot say what it is."""

    def __str__(self):
        raise KeyError("no text")


class Raises(Hook):
    """Fails at a stage, when so many steps are done."""

    priority = "VERY_LOW"

    def __init__(self, stage, steps, error=ArithmeticError):
        self.steps, self.error = steps, error
        setattr(self, stage, self._fail)

    def _fail(self, runner, *_, **__):
        if runner.iter == self.steps:
            raise self.error

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None): ...

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None): ...

    @override
    def after_train_epoch(self, runner): ...

    @override
    def before_save_checkpoint(self, runner, checkpoint): ...


class Broken(Blobs):
    """Cannot read one sample; which batch it is in goes by the seed."""

    def __getitem__(self, index):
        if index == 5:
            raise ArithmeticError
        return super().__getitem__(index)


def facts_of_crash(make_runner, error=ArithmeticError, **overrides):
    """Fail in the eighth step; return the runner, what it left, and the folder."""
    options = {
        "custom_hooks": [Raise(7)],
        "train_cfg": {"by_epoch": True, "max_epochs": 4},
        **NO_VALIDATION,
        **overrides,
    }
    runner = make_runner(**options)
    with pytest.raises(error):
        runner.train()
    folder = runner.log_dir / "crash"
    return runner, json.loads((folder / "rank0.json").read_text()), folder


def test_the_last_lines_of_the_log_are_kept(make_runner):
    class Talks(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            for number in range(20):
                runner.logger.info("line %d of step %d", number, runner.iter + 1)

    _, facts, _ = facts_of_crash(make_runner, custom_hooks=[Talks(), Raise(7)])
    assert len(facts["log"]) == 50
    assert facts["log"][-1].endswith("INFO line 19 of step 8")
    assert facts["log"][-40].endswith("INFO line 0 of step 7")


class RunsOut(Hook):
    """Fails as torch does where the device has no memory left."""

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 7:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def told(runner):
    return next(runner.log_dir.glob("*.log")).read_text().splitlines()[-1]


def test_running_out_of_memory_tells_what_needs_less(make_runner):
    runner, _, folder = facts_of_crash(
        make_runner, error=torch.cuda.OutOfMemoryError, custom_hooks=[RunsOut()]
    )
    line = told(runner)
    assert "failed in step 8 with OutOfMemoryError. Less memory is needed by a smaller" in line
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "rank0.json"]


def test_another_error_is_given_no_advice_on_memory(make_runner):
    runner, _, _ = facts_of_crash(make_runner)
    assert "Less memory" not in told(runner)


def test_an_error_without_a_text_is_raised_and_leaves_a_bundle(make_runner):
    hook = Raises("after_train_iter", 3, MuteError)
    _, facts, _ = facts_of_crash(make_runner, MuteError, custom_hooks=[hook])
    text = "<its text cannot be had: KeyError>"
    assert facts["error"] == {"type": "MuteError", "message": text}
    assert facts["place"] == "step 4"
    assert "_fail" in facts["traceback"]


@pytest.mark.parametrize("workers", [0, 1])
def test_data_that_fails_between_steps_has_no_batch(make_runner, workers):
    loader = {**loader_cfg(), "dataset": Broken(), "num_workers": workers}
    changes = {"train_dataloader": loader, "randomness": {"seed": 1}}
    _, facts, _ = facts_of_crash(make_runner, **changes)
    assert facts["iter"] > 0  # there was a batch before
    assert facts["batch"] == "NoneType"
    assert facts["sample"] == "sample 5 of Broken"


@pytest.mark.parametrize(
    ("stage", "steps", "batch"),
    [
        ("after_train_epoch", 6, None),
        ("before_save_checkpoint", 6, None),
        ("before_train_iter", 3, {"inputs", "labels"}),
        ("after_train_iter", 3, {"inputs", "labels"}),
    ],
)
def test_hooks_in_a_step_have_its_batch_and_others_none(make_runner, stage, steps, batch):
    _, facts, _ = facts_of_crash(make_runner, custom_hooks=[Raises(stage, steps)])
    assert facts["batch"] == "NoneType" if batch is None else set(facts["batch"]) == batch
