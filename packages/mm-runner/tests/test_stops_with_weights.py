"""Runs that are stopped beside hooks that save the weights alone."""

import signal
import threading

import pytest
from test_interruption import RUN, SendAt, assert_equal, parameters, stopped

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.runner import _state as snapshot

pytestmark = pytest.mark.usefixtures("handlers")

BY_STEP = {"interval": 6, "by_epoch": False, "save_optimizer": False}


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
