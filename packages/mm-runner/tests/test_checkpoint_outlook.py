"""What is said to follow a checkpoint that could not be written."""

import pytest
import torch
from toy import NO_VALIDATION, Scripted, loader_cfg

from mm_runner.errors import CheckpointWriteError

GOES_ON = "Training goes on"
TRIED_AGAIN = "It is tried once more when training ends."
ENDS = "Training ends without it."


@pytest.fixture
def run(make_runner, monkeypatch):
    """``run(fails, hook, epochs)`` trains and returns the errors of its log, without time."""

    def train(fails, checkpoint, epochs, error=None, **overrides):
        save, calls = torch.save, []

        def fail_sometimes(content, file):
            calls.append(1)
            if len(calls) in fails:
                raise OSError(28, "No space left on device")
            save(content, file)

        monkeypatch.setattr(torch, "save", fail_sometimes)
        runner = make_runner(
            train_cfg={"max_epochs": epochs},
            default_hooks={"checkpoint": checkpoint},
            **{**NO_VALIDATION, **overrides},
        )
        if error is None:
            runner.train()
        else:
            with pytest.raises(error):
                runner.train()
        log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
        return [line for line in log.splitlines() if "ERROR Writing" in line]

    return train


@pytest.mark.parametrize("is_async", [False, True], ids=["at-once", "asynchronously"])
def test_the_last_one_is_tried_again_and_no_interval_is_promised(run, is_async):
    hook = {"async_save": is_async}
    first, second, third = run({1, 2, 3}, hook, 2, CheckpointWriteError)
    assert first.endswith("the next interval saves again.")
    assert second.endswith(TRIED_AGAIN)
    assert third.endswith("are untouched.")


@pytest.mark.parametrize(
    "options", [{}, {"by_epoch": False, "interval": 6}], ids=["epochs", "steps"]
)
def test_the_last_interval_is_followed_by_none(run, options):
    hook = {"save_last": False, **options}
    first, second = run({1, 2}, hook, 2)
    assert GOES_ON in first
    assert second.endswith(ENDS)


def test_a_best_one_is_followed_by_a_better_one_while_there_are_any(run):
    changes = {
        "val_dataloader": loader_cfg(9),
        "val_cfg": {},
        "val_evaluator": Scripted(values=[0.1, 0.2]),
    }
    checkpoint = {"interval": -1, "save_best": "accuracy", "save_last": False}
    first, second = run({1, 2}, checkpoint, 2, **changes)
    assert first.endswith("the next one that is better is saved.")
    assert second.endswith(ENDS)


def test_a_thread_that_fails_after_the_last_interval_promises_none(run):
    (line,) = run({2}, {"interval": 2, "save_last": False, "async_save": True}, 5)
    assert line.endswith(ENDS)
