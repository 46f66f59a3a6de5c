"""Ctrl-C in a run of which nothing is kept: a finder, a check of resuming, a fast-dev-run."""

import signal
import tempfile

import pytest
from test_interruption import SendAt
from toy import runner_arguments
from typing_extensions import override

from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.tools import fast_dev_run, find_batch_size, find_learning_rate, verify_resume

pytestmark = pytest.mark.usefixtures("handlers")


class CountsSaves(Hook):
    """Counts for the process, since finders copy hooks."""

    number = 0

    @override
    def before_save_checkpoint(self, runner, checkpoint):
        CountsSaves.number += 1


@pytest.mark.parametrize(
    "attempt",
    [
        find_learning_rate,
        find_batch_size,
        verify_resume,
        lambda cfg: fast_dev_run(cfg, 5),
    ],
    ids=["find-lr", "find-batch-size", "verify-resume", "fast-dev-run"],
)
def test_it_says_so_and_writes_no_checkpoint(tmp_path, monkeypatch, capfd, attempt):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(CountsSaves, "number", 0)
    hooks = [SendAt(signal.SIGINT, at=1), CountsSaves()]
    cfg = runner_arguments(tmp_path / "run", custom_hooks=hooks)
    with pytest.raises(RunStopped) as stop:
        attempt(cfg)
    assert stop.value.code == 130
    captured = capfd.readouterr()
    told = captured.out + captured.err
    assert "Ctrl-C: leaving after this step." in told
    assert "The run was interrupted and leaves after epoch 0, step 2, with status 130; " in told
    assert "with status 130; nothing is kept." in told
    assert "resume=True" not in told
    assert "saved" not in told
    assert CountsSaves.number == 0
    assert not list(tmp_path.rglob("*.pth"))


def test_a_run_that_keeps_its_checkpoint_says_as_before(make_runner, capfd):
    runner = make_runner(custom_hooks=[SendAt(signal.SIGINT, at=1)])
    with pytest.raises(RunStopped):
        runner.train()
    captured = capfd.readouterr()
    told = captured.out + captured.err
    assert "Ctrl-C: leaving after this step." in told
    assert (
        f"saved {runner.work_dir / 'iter_2.pth'}. resume=True (--resume) continues from there."
        in told
    )
