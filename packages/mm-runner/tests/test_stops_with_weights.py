"""Runs that are stopped beside hooks that save the weights alone."""

import signal
import threading

import pytest
from test_interruption import RUN, SendAt, assert_equal, parameters, stopped
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.runner import _state as snapshot

pytestmark = pytest.mark.usefixtures("handlers")

BY_STEP = {"interval": 6, "by_epoch": False, "save_optimizer": False}
BY_EPOCH = {"interval": 1, "save_optimizer": False}


def last_of(runner):
    return (runner.work_dir / "last_checkpoint").read_text().strip()


@pytest.mark.parametrize("at", [6, 7], ids=["of-this-step", "of-the-step-before"])
def test_a_thread_that_writes_weights_is_waited_for(make_runner, monkeypatch, tmp_path, at):
    whole = make_runner(work_dir=tmp_path / "whole", **RUN)
    whole.train()
    save = snapshot.save_checkpoint_file

    def save_late(content, path):
        if threading.current_thread() is not threading.main_thread():
            threading.Event().wait(0.3)
        save(content, path)

    monkeypatch.setattr(snapshot, "save_checkpoint_file", save_late)
    hooks = {"checkpoint": {**BY_STEP, "async_save": True}}
    send = SendAt(signal.SIGTERM, at=at - 1)
    runner = make_runner(**RUN, default_hooks=hooks, custom_hooks=[send])
    assert stopped(runner) == 75
    assert last_of(runner) == f"iter_{at}.pth"
    assert "optimizer" in load_checkpoint_file(runner.work_dir / f"iter_{at}.pth")
    resumed = make_runner(**RUN, resume=True)
    resumed.train()
    assert_equal(parameters(resumed), parameters(whole))


class UntilTimeIsUp(Hook):
    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        while runner.iter == 8 and not runner.interruption.pending:
            threading.Event().wait(0.01)


@pytest.mark.parametrize("saving", [BY_EPOCH, BY_STEP], ids=["by-epoch", "by-step"])
def test_weights_do_not_replace_what_is_saved_as_time_is_up(make_runner, saving):
    limit = {"type": "TimeLimitHook", "max_time": 0.3}
    hooks = [UntilTimeIsUp(), limit]
    runner = make_runner(**RUN, default_hooks={"checkpoint": saving}, custom_hooks=hooks)
    runner.train()
    # Where the machine is slow it is an earlier step than the ninth.
    assert last_of(runner) == f"iter_{runner.iter}.pth"
    assert "optimizer" in load_checkpoint_file(runner.work_dir / last_of(runner))
