"""``mm-runner train --fast-dev-run``: a few batches of everything, and nothing left of it."""

import re
import sys
import tempfile
from pathlib import Path

import pytest
from test_cli import _CONFIG
from typing_extensions import override

from mm_runner.cli import main
from mm_runner.hooks import Hook

_ITERATIONS = "train_cfg={'_delete_': True, 'by_epoch': False, 'max_iters': 100}"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration in the current directory, and temporary files in one that is looked at."""
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    Path("toy_run.yaml").write_text(_CONFIG)
    return "toy_run.yaml"


def left_behind(tmp_path):
    files = {path.name for path in (tmp_path / "here").rglob("*")}
    temporary = {path.name for path in (tmp_path / "temporary").iterdir()}
    # torch makes a folder of its own there.
    return (files - {"toy_run.yaml"}) | {one for one in temporary if "inductor" not in one}


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-1]


class Steps(Hook):
    """Notes, for the process, what a run did."""

    seen: list = []  # noqa: RUF012

    def __init__(self):
        self.seen.clear()

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        result = runner.optim_wrapper.last_result
        self.seen.append((runner.iter, runner.max_iters, bool(result.stepped)))

    @override
    def before_val(self, runner):
        self.seen.append("val")

    @override
    def after_train(self, runner):
        self.seen.append((runner.epoch, runner.iter))


@pytest.mark.parametrize(
    ("arguments", "changes", "batches", "seen"),
    [
        ([], [], 1, [(0, 12, True), "val", (1, 1)]),
        (["9"], [], 6, [*((n, 12, True) for n in range(6)), "val", (1, 6)]),
        (["2"], [_ITERATIONS], 2, [*((n, 100, True) for n in range(2)), "val", (0, 2)]),
        (
            ["2"],
            ["train_cfg.val_interval=2", "optim_wrapper.accumulative_counts=4"],
            2,
            [(0, 12, False), (1, 12, True), "val", (1, 2)],
        ),
    ],
    ids=["one", "more-than-there-are", "iterations", "accumulating"],
)
def test_so_many_batches_of_everything_run(
    config, tmp_path, capsys, arguments, changes, batches, seen
):
    hooks = "custom_hooks=[{'type': 'test_fast_dev_run:Steps'}]"
    options = ["--cfg-options", hooks, *changes]
    assert main(["train", config, "--fast-dev-run", *arguments, *options]) == 0
    assert last_line(capsys) == (
        f"fast-dev-run: trained {batches}, validated {batches}, tested {batches} batches in each "
        "process: everything ran; nothing was kept."
    )
    assert sys.modules["test_fast_dev_run"].Steps.seen == seen
    assert left_behind(tmp_path) == set()


def test_what_a_run_would_keep_is_not_kept(config, tmp_path, capsys):
    checkpoint = "{'save_best': 'accuracy', 'max_keep_ckpts': 1, 'published_keys': ['state_dict']}"
    changes = [
        f"default_hooks={{'checkpoint': {checkpoint}}}",
        "custom_hooks=[{'type': 'EMAHook', 'begin_iter': 11}]",
        "test_evaluator=[{'type': 'Accuracy'}, {'type': 'DumpResults', 'out_file_path': 'o.pkl'}]",
        "log_writers=['JsonLinesWriter']",
    ]
    assert main(["train", config, "--fast-dev-run", "--cfg-options", *changes]) == 0
    assert "everything ran" in last_line(capsys)
    assert left_behind(tmp_path) == set()


def test_a_metric_that_is_not_there_is_found_out(config, tmp_path, capsys):
    changes = "default_hooks.checkpoint.save_best=acuracy"
    assert main(["train", config, "--fast-dev-run", "--cfg-options", changes]) == 1
    assert "acuracy" in capsys.readouterr().err
    assert left_behind(tmp_path) == set()


def test_a_work_directory_keeps_its_logs_and_its_checkpoints(config, tmp_path, capsys):
    assert main(["train", config, "--work-dir", "kept"]) == 0
    before = {path.name: path.stat().st_mtime_ns for path in Path("kept").glob("*")}
    arguments = ["--work-dir", "kept", "--resume", "--cfg-options", "train_cfg.max_epochs=9"]
    limited = "default_hooks.checkpoint.max_keep_ckpts=1"
    assert main(["train", config, "--fast-dev-run", "2", *arguments, limited]) == 0
    printed = capsys.readouterr().out
    assert f"everything ran; the logs are in {tmp_path / 'here' / 'kept'}." in printed
    assert "Resuming" not in printed
    assert "0 of them done" not in printed.rpartition("Training Classifier")[2]
    after = {path.name: path.stat().st_mtime_ns for path in Path("kept").glob("*.pth")}
    assert after == {name: time for name, time in before.items() if name.endswith(".pth")}
    assert (Path("kept") / "last_checkpoint").read_text() == "epoch_2.pth\n"


class Foreign:
    """Shares nothing with the loops of the package, and does not look at the flag."""

    def __init__(self, runner, dataloader, max_epochs):
        self.runner, self.dataloader, self.max_epochs = runner, dataloader, max_epochs
        self.max_iters = max_epochs * len(dataloader)
        self.epoch = self.iter = 0
        self.val_begin = self.val_interval = 1
        self.stop_training = False

    def run(self):
        runner = self.runner
        runner.call_hook("before_train")
        while self.epoch < self.max_epochs:
            for index, batch in enumerate(self.dataloader):
                outputs = runner.model.train_step(batch, optim_wrapper=runner.optim_wrapper)
                named = {"batch_idx": index, "data_batch": batch, "outputs": outputs}
                runner.call_hook("after_train_iter", **named)
                self.iter += 1
            self.epoch += 1
        runner.call_hook("after_train")


def test_a_loop_that_is_none_of_the_packages_ends_soon_too(config, tmp_path, capsys):
    changes = [
        "train_cfg={'_delete_': True, 'type': 'test_fast_dev_run:Foreign', 'max_epochs': 50}",
        "custom_hooks=[{'type': 'test_fast_dev_run:Steps'}]",
    ]
    assert main(["train", config, "--fast-dev-run", "2", "--cfg-options", *changes]) == 0
    assert "trained 3, validated 2, tested 2 batches" in last_line(capsys)
    seen = sys.modules["test_fast_dev_run"].Steps.seen
    assert seen == [*((n, 300, True) for n in range(3)), (0, 2), "val"]
    assert left_behind(tmp_path) == set()


@pytest.mark.parametrize("arguments", [["toy_run.yaml", "--fast-dev-run", "0"], ["--fast-dev-run"]])
def test_a_number_is_needed(config, capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["train", *arguments, *([config] if len(arguments) == 1 else [])])
    assert stopped.value.code == 2
    message = r"--fast-dev-run: a positive number is needed, got .*; CONFIG stands first"
    assert re.search(message, capsys.readouterr().err)


def test_ranks_run_together(config, tmp_path, run_command):
    temporary = str(tmp_path / "temporary")
    done = run_command(
        "train", config, "--fast-dev-run", "2", ranks=2, cwd=tmp_path / "here", TMPDIR=temporary
    )
    assert done.returncode == 0, done.stderr
    told = "trained 2, validated 2, tested 2 batches in each process: everything ran"
    assert done.stdout.count(told) == 1
    assert not [name for name in left_behind(tmp_path) if not name.startswith("torch")]
