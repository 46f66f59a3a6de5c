"""A directory that somebody removes while the run trains."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from toy import Scripted, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.checkpoint import latest_readable, load_checkpoint_file
from mm_runner.hooks import Hook

SCORES = (0.5, 0.9, 0.6, 0.7)


class Remove(Hook):
    """Removes something before a step, counted from 0, on the main process."""

    priority = "VERY_HIGH"

    def __init__(self, step, paths):
        self.step, self.paths = step, paths

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.step and runner.rank == 0:
            for path in self.paths(runner):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class RemoveAtTheEnd(Hook):
    """Removes the work directory after the last validation."""

    priority = "VERY_HIGH"

    @override
    def after_train(self, runner):
        shutil.rmtree(runner.work_dir)


def everything(runner):
    return [runner.work_dir]


def train(work_dir, hook, *, interval=2, epochs=4, scores=SCORES, checkpoint=None, **more):
    saving = {"save_best": "accuracy", "max_keep_ckpts": 2, **(checkpoint or {})}
    runner = Runner(
        **runner_arguments(
            work_dir,
            train_cfg={"max_epochs": epochs},
            default_hooks={"logger": {"interval": interval}, "checkpoint": saving},
            val_evaluator=Scripted(values=scores),
            custom_hooks=[hook] if hook else None,
            **more,
        )
    )
    runner.train()
    return runner


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def removals(log):
    return [line for line in log.splitlines() if "WARNING" in line and "removed" in line]


def saved(runner):
    return sorted(path.name for path in runner.work_dir.glob("*.pth"))


@pytest.mark.parametrize("interval", [2, 100], ids=["log-first", "save-first"])
@pytest.mark.parametrize("is_async", [False, True], ids=["at-once", "asynchronously"])
def test_it_is_told_once_and_the_run_goes_on_from_what_is_there(tmp_path, interval, is_async):
    runner = train(
        tmp_path / "run",
        # Some steps after the files of epoch 2 were asked for: a thread has written them.
        Remove(17, everything),
        interval=interval,
        checkpoint={"async_save": is_async},
    )
    log = log_of(runner)
    (line,) = removals(log)
    assert f"WARNING {runner.work_dir} was removed while training. Lost: " in line
    assert "Training goes on" in line
    for lost in ("epoch_1.pth", "best_accuracy.pth", "epoch_2.pth", "the log and the scalars"):
        assert lost in line
    config = yaml.safe_load((runner.log_dir / "config.yaml").read_text())
    assert config["train_cfg"] == {"max_epochs": 4}
    scalars = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    assert json.loads(scalars[-1])["accuracy"] == 0.7
    # The best of those that are there, and the newest.
    assert saved(runner) == ["best_accuracy.pth", "epoch_3.pth", "epoch_4.pth"]
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 4
    assert "accuracy 0.7 after epoch 4, step 24: best_accuracy.pth\n" in log
    state = load_checkpoint_file(latest_readable(runner.work_dir, pytest.fail)[0])
    assert state["checkpoint_hook"]["kept"] == ["epoch_3.pth", "epoch_4.pth"]
    assert state["checkpoint_hook"]["best"]["accuracy"]["score"] == 0.6

    resumed = train(tmp_path / "run", None, epochs=5, scores=[0.65], resume=True)
    assert saved(resumed) == ["best_accuracy.pth", "epoch_4.pth", "epoch_5.pth"]
    assert "accuracy 0.7 after epoch 4, step 24: best_accuracy.pth\n" in log_of(resumed)
    assert removals(log_of(resumed)) == []


def test_what_was_removed_after_the_last_validation_is_gone_in_the_receipt(tmp_path):
    runner = train(tmp_path / "run", RemoveAtTheEnd())
    log = log_of(runner)
    (line,) = removals(log)
    assert "epoch_4.pth" in line
    assert "Training goes on" not in line
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log


def test_the_directory_of_the_logs_alone_takes_no_checkpoint_with_it(tmp_path):
    runner = train(tmp_path / "run", Remove(13, lambda runner: [runner.log_dir]))
    (line,) = removals(log_of(runner))
    assert f"{runner.log_dir} was removed while training. Lost: the log and the scalars" in line
    assert (runner.log_dir / "config.yaml").is_file()
    assert "accuracy 0.9 after epoch 2, step 12: best_accuracy.pth\n" in log_of(runner)


def test_checkpoints_that_are_removed_alone_are_told(tmp_path):
    runner = train(tmp_path / "run", Remove(13, lambda runner: runner.work_dir.glob("*.pth")))
    (line,) = removals(log_of(runner))
    assert f"WARNING The checkpoints were removed from {runner.work_dir} while training: " in line
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 4


def test_single_files_may_be_taken_away(tmp_path):
    def some(runner):
        return [runner.work_dir / name for name in ("epoch_1.pth", "best_accuracy.pth")]

    runner = train(tmp_path / "run", Remove(13, some))
    log = log_of(runner)
    assert removals(log) == []
    # Whoever took the best one away has it.
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log
    assert saved(runner) == ["epoch_3.pth", "epoch_4.pth"]


def test_the_only_file_may_be_moved_away(tmp_path):
    def best(runner):
        return [runner.work_dir / "best_accuracy.pth"]

    saving = {"interval": -1, "save_last": False}
    runner = train(tmp_path / "run", Remove(13, best), checkpoint=saving)
    log = log_of(runner)
    assert removals(log) == []
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log


@pytest.mark.parametrize("out_dir", [None, "out"])
def test_the_only_file_is_lost_with_its_directory(tmp_path, out_dir):
    saving = {"interval": -1, "save_last": False}
    if out_dir:
        saving["out_dir"] = str(tmp_path / out_dir)
    directory = (tmp_path / out_dir / "run") if out_dir else tmp_path / "run"
    runner = train(tmp_path / "run", Remove(13, lambda _: [directory]), checkpoint=saving)
    (line,) = removals(log_of(runner))
    assert "best_accuracy.pth" in line
    assert load_checkpoint_file(directory / "best_accuracy.pth")["meta"]["epoch"] == 4


class MoveBestThenRemoveLogs(Hook):
    priority = "VERY_HIGH"

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == 13:
            (runner.work_dir / "best_accuracy.pth").rename(runner.work_dir.parent / "mine.pth")
        if runner.iter == 14:
            shutil.rmtree(runner.log_dir)


def test_a_file_that_was_moved_before_the_logs_were_removed_is_not_lost_with_them(tmp_path):
    runner = train(tmp_path / "run", MoveBestThenRemoveLogs())
    log = log_of(runner)
    (line,) = removals(log)
    assert f"{runner.log_dir} was removed while training. Lost: the log and the scalars" in line
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log


def test_the_configuration_alone_is_written_again_without_a_word(tmp_path):
    def config(runner):
        return [runner.log_dir / "config.yaml"]

    # Before the first line of scalars.
    runner = train(tmp_path / "run", Remove(2, config), interval=100)
    assert removals(log_of(runner)) == []
    assert (runner.log_dir / "config.yaml").is_file()


def test_the_directory_of_the_logs_is_told_before_the_first_scalars(tmp_path):
    runner = train(tmp_path / "run", Remove(1, lambda runner: [runner.log_dir]))
    (line,) = removals(log_of(runner))
    assert f"{runner.log_dir} was removed while training" in line


def test_a_run_that_goes_on_elsewhere_has_lost_nothing(tmp_path):
    first = train(tmp_path / "first", None)
    newest = str(first.work_dir / "epoch_4.pth")
    second = train(
        tmp_path / "second", None, epochs=5, scores=[0.7, 0.3], resume=True, load_from=newest
    )
    log = log_of(second)
    assert removals(log) == []
    assert "0.9 after epoch 2, step 12: best_accuracy.pth, which is gone\n" in log
    assert saved(second) == ["epoch_5.pth"]


def train_on_each(rank, work_dir):
    runner = train(work_dir, Remove(7, everything), launcher="none")
    assert runner.world_size == 2
    (hook,) = (one for one in runner.hooks if type(one).__name__ == "CheckpointHook")
    assert hook.best_records["accuracy"]["score"] == 0.7
    if rank == 0:
        (line,) = removals(log_of(runner))
        assert "epoch_2.pth" in line
        assert saved(runner) == ["best_accuracy.pth", "epoch_3.pth", "epoch_4.pth"]


def test_all_processes_agree_on_what_is_lost(run_ranks, tmp_path):
    run_ranks(train_on_each, 2, Path(tmp_path / "run"))
