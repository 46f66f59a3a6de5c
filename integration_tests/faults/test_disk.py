"""Disks that fill up, go away, are read-only or slow: training goes on, and loses nothing whole."""

import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from small_run import BATCHES, EPOCHS, build, weights
from typing_extensions import override

from mm_runner import CheckpointError
from mm_runner.checkpoint import latest_readable
from mm_runner.errors import CheckpointWriteError, WorkDirError
from mm_runner.hooks import Hook

pytestmark = pytest.mark.cut

# Of a model so wide that a file system of a quarter of a megabyte takes one checkpoint, not two.
WIDTH, SMALL, LARGE = 2000, "256k", "4m"


class AfterEpoch(Hook):
    """Calls ``act`` with the number of each epoch that is done, before it is saved."""

    def __init__(self, act):
        self.act = act

    @override
    def after_train_epoch(self, runner):
        self.act(runner.epoch + 1)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own; ``remount(options)`` changes it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = _mount("-t", "tmpfs", "-o", f"size={SMALL}", "mm_faults", folder)
    if made.returncode:
        pytest.skip(f"no file system of its own without root: {made.stderr.strip()}")

    def remount(options):
        done = _mount("-o", f"remount,{options}", folder)
        assert done.returncode == 0, done.stderr

    yield folder, remount
    subprocess.run(["umount", "-l", folder], check=True)  # noqa: S607 - wherever it is


def _mount(*arguments):
    command = ["mount", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The weights at the end of a run that nothing happens to."""
    runner = build(tmp_path_factory.mktemp("undisturbed"), width=WIDTH, log_level="ERROR")
    runner.train()
    return weights(runner)


def assert_equal(runner, expected):
    for name, value in weights(runner).items():
        assert (value == expected[name]).all(), name


def test_a_full_disk_is_reported_and_the_run_resumes_once_there_is_room(
    small_disk, undisturbed, capfd
):
    folder, remount = small_disk
    work_dir = folder / "run"
    runner = build(work_dir, width=WIDTH)
    with pytest.raises(CheckpointWriteError, match="could not be written"):
        runner.train()
    told = "".join(capfd.readouterr())
    assert "No space left on device. Free space" in told
    assert "Logging error" not in told, "the log on that disk has failed, too, and said so"
    assert_equal(runner, undisturbed)
    path, content = latest_readable(work_dir, print)
    assert (path.name, content["meta"]["iter"]) == ("epoch_1.pth", BATCHES)
    assert not list(work_dir.glob(".*.unfinished"))

    remount(f"size={LARGE}")
    resumed = build(work_dir, width=WIDTH)
    resumed.train()
    assert_equal(resumed, undisturbed)
    assert latest_readable(work_dir, print)[0].name == f"epoch_{EPOCHS}.pth"


def test_a_read_only_disk_is_reported_and_written_again_when_it_can_be(
    small_disk, undisturbed, tmp_path, capfd
):
    folder, remount = small_disk
    remount(f"size={LARGE}")

    def act(epoch):
        if epoch > 1:
            remount("ro" if epoch == 2 else "rw")

    # The log stays elsewhere: a file system with a file open for writing cannot be switched.
    runner = build(
        tmp_path / "run",
        width=WIDTH,
        checkpoint={"out_dir": str(folder)},
        custom_hooks=[AfterEpoch(act)],
    )
    runner.train()
    assert "epoch_2.pth failed: [Errno 30] Read-only file system" in "".join(capfd.readouterr())
    assert_equal(runner, undisturbed)
    saved = folder / "run"
    assert sorted(path.name for path in saved.glob("*.pth")) == ["epoch_1.pth", "epoch_3.pth"]
    assert latest_readable(tmp_path / "run", print)[0].samefile(saved / "epoch_3.pth")
    remount("ro")
    with pytest.raises(WorkDirError, match="Read-only file system"):
        build(folder / "another")
    remount("rw")


def test_a_removed_directory_is_made_again(tmp_path, undisturbed):
    work_dir = tmp_path / "run"

    def act(epoch):
        if epoch == 2:
            shutil.rmtree(work_dir)

    runner = build(work_dir, width=WIDTH, custom_hooks=[AfterEpoch(act)])
    runner.train()
    assert_equal(runner, undisturbed)
    assert sorted(path.name for path in work_dir.glob("*.pth")) == ["epoch_2.pth", "epoch_3.pth"]
    assert latest_readable(work_dir, print)[0].name == "epoch_3.pth"


@pytest.mark.parametrize("by_thread", [False, True], ids=["in-the-step", "by-a-thread"])
def test_renaming_that_takes_long_shows_others_whole_files_only(
    tmp_path, monkeypatch, undisturbed, by_thread
):
    rename = Path.replace

    def rename_slowly(path, target):
        # As over a network: half of the time before, half of it after it has happened.
        time.sleep(0.15)
        done = rename(path, target)
        time.sleep(0.15)
        return done

    monkeypatch.setattr(Path, "replace", rename_slowly)
    seen, is_over = [], threading.Event()

    def look():
        while not is_over.wait(0.005):
            # Pruning may take a file away between the look into the directory and the reading.
            with suppress(CheckpointError):
                _, content = latest_readable(tmp_path, lambda _: None)
                seen.append(0 if content is None else content["meta"]["iter"])

    reader = threading.Thread(target=look)
    reader.start()
    checkpoint = {"async_save": by_thread}
    try:
        runner = build(tmp_path, width=WIDTH, checkpoint=checkpoint, log_level="ERROR")
        runner.train()
    finally:
        is_over.set()
        reader.join()
    assert_equal(runner, undisturbed)
    assert seen == sorted(seen), "the newest whole checkpoint went back in time"
    assert {BATCHES, 2 * BATCHES} <= set(seen)
    assert latest_readable(tmp_path, print)[1]["meta"]["iter"] == EPOCHS * BATCHES
