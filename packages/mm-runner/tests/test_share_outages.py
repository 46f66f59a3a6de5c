"""A share that does not answer for a while, or is gone and comes back, while the run trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_removed_directory import log_of, removals, saved, train
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import CheckpointHook, Hook


class At(Hook):
    """Calls ``actions`` before their steps, counted from 0, on the main process.

    What a thread is writing is whole then.
    """

    priority = "VERY_HIGH"

    def __init__(self, actions):
        self.actions = actions

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter in self.actions and runner.rank == 0:
            for hook in runner.hooks:
                if isinstance(hook, CheckpointHook):
                    hook.finish_writing()
            self.actions[runner.iter](runner)


class Silence:
    """Lets no path below a directory be looked at, as a share does whose server is gone."""

    def __init__(self, directory, monkeypatch):
        self.directory, self.monkeypatch = str(directory), monkeypatch

    def begin(self, _=None):
        for name in ("stat", "listdir", "open", "scandir", "mkdir"):
            self.monkeypatch.setattr(os, name, self.refusing(getattr(os, name)))

    def end(self, _=None):
        self.monkeypatch.undo()

    def refusing(self, function):
        def refuse(path=".", *arguments, **named):
            if not isinstance(path, int) and str(path).startswith(self.directory):
                raise OSError(116, "Stale file handle", str(path))
            return function(path, *arguments, **named)

        return refuse


@pytest.mark.parametrize("is_async", [False, True], ids=["at-once", "asynchronously"])
@pytest.mark.parametrize("interval", [2, 100], ids=["log-first", "save-first"])
def test_a_directory_that_cannot_be_looked_at_was_not_removed(
    tmp_path, monkeypatch, interval, is_async
):
    silence = Silence(tmp_path / "run", monkeypatch)
    hook = At({13: silence.begin, 19: silence.end})
    saving = {"async_save": is_async}
    runner = train(tmp_path / "run", hook, interval=interval, checkpoint=saving)
    assert runner.iter == 24
    log = log_of(runner)
    assert removals(log) == []
    assert "0.9 after epoch 2, step 12: best_accuracy.pth\n" in log
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 2
    assert {"epoch_2.pth", "epoch_4.pth"} <= set(saved(runner))


class SilenceAtTheEnd(Hook):
    priority = "LOWEST"

    def __init__(self, silence):
        self.silence = silence

    @override
    def after_train(self, runner):
        self.silence.begin()


def test_what_cannot_be_looked_at_in_the_end_does_not_end_the_run_by_an_error(
    tmp_path, monkeypatch
):
    silence = Silence(tmp_path / "run", monkeypatch)
    runner = train(tmp_path / "run", SilenceAtTheEnd(silence))
    silence.end()
    assert runner.iter == 24
    # The open file of the log took it in. That the best one is gone is not known.
    assert "0.9 after epoch 2, step 12: best_accuracy.pth\n" in log_of(runner)


UNREADABLE = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_removed_directory import train
from test_share_outages import At

def lock(runner):
    os.chmod(runner.work_dir, 0)
    os.seteuid(65534)

def unlock(runner):
    os.seteuid(0)
    os.chmod(runner.work_dir, 0o777)

runner = train(sys.argv[1], At({7: lock, 15: unlock}))
print("steps", runner.iter)
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="root may do that")
def test_a_directory_whose_permissions_are_taken_for_a_while_ends_nothing(tmp_path):
    arguments = [sys.executable, "-c", UNREADABLE, tmp_path / "run", Path(__file__).parent]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("steps 24\n")
    assert "was removed" not in result.stdout


def go_away(base):
    def away(_):
        (base / "share").rename(base / "hidden")
        (base / "share").mkdir()

    return away


def come_back(base):
    def back(_):
        (base / "share").rename(base / "local")
        (base / "hidden").rename(base / "share")

    return back


@pytest.mark.parametrize("is_async", [False, True], ids=["at-once", "asynchronously"])
@pytest.mark.parametrize(
    ("gone", "back", "scores"),
    [
        (13, 17, (0.5, 0.9, 0.6, 0.7)),
        (13, 19, (0.5, 0.9, 0.6, 0.7)),
        # What was saved meanwhile lies elsewhere: of those that are there, this one is not better.
        (13, 19, (0.5, 0.9, 0.95, 0.8)),
        # None was saved meanwhile: the file is the same one, and was forgotten.
        (13, 19, (0.5, 0.9, float("nan"), 0.7)),
    ],
    ids=["before-the-save", "after-the-best", "after-a-better-one", "after-none"],
)
def test_no_worse_model_is_saved_over_the_best_of_a_share_that_came_back(
    tmp_path, gone, back, scores, is_async
):
    hook = At({gone: go_away(tmp_path), back: come_back(tmp_path)})
    saving = {"async_save": is_async, "max_keep_ckpts": -1}
    work_dir = tmp_path / "share" / "run"
    runner = train(work_dir, hook, scores=scores, checkpoint=saving)
    content = load_checkpoint_file(work_dir / "best_accuracy.pth")
    assert content["meta"]["epoch"] == 2
    newest = load_checkpoint_file(work_dir / "epoch_4.pth")
    assert newest["checkpoint_hook"]["best"]["accuracy"]["score"] == 0.9
    assert "accuracy 0.9 after epoch 2, step 12: best_accuracy.pth\n" in log_of(runner)


def test_what_is_better_than_the_best_of_a_share_that_came_back_is_saved(tmp_path):
    hook = At({13: go_away(tmp_path), 19: come_back(tmp_path)})
    runner = train(tmp_path / "share" / "run", hook, scores=(0.5, 0.9, 0.95, 0.92))
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 4
    log = log_of(runner)
    assert "best_accuracy.pth is another one than was saved last: accuracy 0.9000" in log
    assert "accuracy 0.92 after epoch 4, step 24: best_accuracy.pth\n" in log


def test_best_files_are_read_only_where_they_were_replaced(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        "mm_runner.hooks._checkpoint_directory.load_checkpoint_file",
        lambda path: read.append(path.name) or load_checkpoint_file(path),
    )
    train(tmp_path / "run", None)
    train(tmp_path / "run", None)  # finds the files of another run
    assert read == []
    hook = At({13: go_away(tmp_path), 19: come_back(tmp_path)})
    train(tmp_path / "share" / "run", hook)
    assert read == ["best_accuracy.pth"]


def test_the_log_goes_on_in_the_file_that_came_back(tmp_path):
    hook = At({13: go_away(tmp_path), 17: come_back(tmp_path)})
    runner = train(tmp_path / "share" / "run", hook)
    lines = log_of(runner).splitlines()
    assert lines[-1].split() == ["logs", str(runner.log_dir)]
    assert any("Epoch(train)  [1][2/6]" in line for line in lines)
    local = tmp_path / "local" / "run" / runner.timestamp
    assert "was removed" in (local / f"{runner.timestamp}.log").read_text()
    scalars = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    assert json.loads(scalars[-1])["accuracy"] == 0.7


def test_a_file_that_came_back_may_be_moved_away_alone(tmp_path):
    def move(runner):
        (runner.work_dir / "best_accuracy.pth").rename(tmp_path / "mine.pth")

    # Told at a line, and back before the next file.
    hook = At({13: go_away(tmp_path), 17: come_back(tmp_path), 19: move})
    runner = train(tmp_path / "share" / "run", hook)
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log_of(runner)


def share_on_each(rank, base):
    hook = At({13: go_away(base), 19: come_back(base)})
    runner = train(base / "share" / "run", hook, scores=(0.5, 0.9, 0.6, 0.7), launcher="none")
    assert runner.world_size == 2
    (hook,) = (one for one in runner.hooks if type(one).__name__ == "CheckpointHook")
    assert hook.best_records["accuracy"]["score"] == 0.9
    if rank == 0:
        best = load_checkpoint_file(runner.work_dir / "best_accuracy.pth")
        assert best["meta"]["epoch"] == 2


def test_all_processes_agree_on_the_best_of_a_share_that_came_back(run_ranks, tmp_path):
    run_ranks(share_on_each, 2, tmp_path)
