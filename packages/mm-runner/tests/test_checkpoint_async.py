"""Checkpoints that a thread writes while training goes on."""

import errno
import multiprocessing
import os
import signal
import threading
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from toy import Killed, Scripted, StopBeforeEpoch, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.checkpoint import BackgroundWriter, load_checkpoint_file
from mm_runner.hooks import Hook


def copies_of(writer, *contents):
    """What a writer has copied of each, one after the other."""
    copied = []
    for content in contents:
        writer.submit(content, copied.append)
        writer.wait()
    return copied


def test_a_copy_stays_as_it_was_and_its_memory_is_kept():
    weight = torch.arange(6.0).reshape(2, 3)
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    content = {"state": OrderedDict(a=weight, b=image, c=weight[0], d=weight.t()), "n": [1, "x"]}
    writer = BackgroundWriter()
    (first,) = copies_of(writer, content)
    weight.zero_()
    assert first["state"]["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first["state"]["b"].is_contiguous(memory_format=torch.channels_last)
    assert first["state"]["c"].tolist() == [0, 1, 2]
    assert first["state"]["d"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert first["n"] == [1, "x"]
    assert type(first["state"]) is OrderedDict
    second, grown = copies_of(writer, content, {"state": {"a": torch.ones(3, 3), "b": image}})
    for name in ("a", "b"):
        assert second["state"][name].data_ptr() == first["state"][name].data_ptr()
    assert grown["state"]["b"].data_ptr() == first["state"]["b"].data_ptr()
    assert grown["state"]["a"].shape == (3, 3)


def test_tied_weights_stay_one_tensor_and_equal_paths_stay_apart():
    tied = torch.ones(4)
    content = {"a": tied, "b": tied.view(4), 1: torch.zeros(1), "1": torch.ones(1)}
    (copied,) = copies_of(BackgroundWriter(), content)
    assert copied["a"] is copied["b"]
    assert (copied[1].item(), copied["1"].item()) == (0, 1)


def test_one_file_is_written_at_a_time_and_a_failure_is_told_once():
    release, order = threading.Event(), []
    writer = BackgroundWriter()

    def slow(content):
        release.wait(30)
        order.append(content["n"])

    writer.submit({"n": 1}, slow)
    second = threading.Thread(target=writer.submit, args=({"n": 2}, slow))
    second.start()
    assert order == []
    release.set()
    second.join()
    writer.wait()
    assert order == [1, 2]

    def fail(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer.submit({"n": 3}, fail)
    with pytest.raises(OSError, match="No space left"):
        writer.submit({"n": 4}, order.append)
    writer.wait()
    assert order == [1, 2]


def test_a_run_that_ends_by_an_error_ends_after_the_file_is_whole(make_runner, tmp_path):
    with pytest.raises(Killed):
        make_runner(
            default_hooks={"checkpoint": {"async_save": True}}, custom_hooks=[StopBeforeEpoch(1)]
        ).train()
    assert load_checkpoint_file(tmp_path / "run" / "epoch_1.pth")["meta"]["epoch"] == 1
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "epoch_1.pth\n"


def test_a_file_written_asynchronously_holds_the_same(make_runner, tmp_path):
    contents = []
    for name in ("now", "later"):
        runner = make_runner(
            work_dir=tmp_path / name,
            optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.01}},
            default_hooks={"checkpoint": {"async_save": name == "later"}},
        )
        runner.train()
        contents.append(load_checkpoint_file(tmp_path / name / "epoch_1.pth"))
    now, later = contents
    assert now.keys() == later.keys()
    torch.testing.assert_close(now["state_dict"], later["state_dict"], rtol=0, atol=0)
    torch.testing.assert_close(
        now["optimizer"]["state"], later["optimizer"]["state"], rtol=0, atol=0
    )


class FullDisk(Hook):
    """Lets the file of one epoch be written to a device that is always full."""

    def __init__(self, epoch):
        self.epoch = epoch

    @override
    def before_train_epoch(self, runner):
        if runner.epoch + 1 == self.epoch:
            name = f".epoch_{self.epoch}.pth.{os.getpid()}.unfinished"
            (runner.work_dir / name).symlink_to("/dev/full")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has such a device")
@pytest.mark.parametrize("in_background", [False, True], ids=["at-once", "asynchronous"])
def test_a_full_disk_is_reported_and_the_next_interval_saves(make_runner, in_background):
    runner = make_runner(
        train_cfg={"max_epochs": 3},
        default_hooks={"checkpoint": {"async_save": in_background}},
        custom_hooks=[FullDisk(2)],
    )
    runner.train()
    assert {path.name for path in runner.work_dir.glob("*.pth")} == {"epoch_1.pth", "epoch_3.pth"}
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "epoch_2.pth failed: " in log
    assert "Training continues." in log
    assert [path.name for path in runner.work_dir.glob(".*")] == [".lock"]


def _is_killed_while_it_writes_the_best(work_dir):
    save = torch.save

    def stop_halfway(content, file):
        if content["meta"]["epoch"] == 2 and "optimizer" not in content:
            file.write(b"half")
            written.set()
            threading.Event().wait()
        save(content, file)

    written = threading.Event()
    torch.save = stop_halfway

    class Kill(Hook):
        @override
        def before_train_epoch(self, runner):
            if runner.epoch == 2 and written.wait(30):
                os.kill(os.getpid(), signal.SIGKILL)

    with_best(work_dir, [0.5, 0.9, 0.6], custom_hooks=[Kill()])


def with_best(work_dir, values, **more):
    saving = {"save_best": "accuracy", "async_save": True}
    runner = Runner(
        **runner_arguments(
            work_dir,
            train_cfg={"max_epochs": 3},
            default_hooks={"checkpoint": saving},
            val_evaluator=Scripted(values=values),
            **more,
        )
    )
    runner.train()
    return runner


def test_the_best_that_a_kill_has_cut_off_is_saved_by_the_resumed_run(tmp_path):
    process = multiprocessing.get_context("spawn").Process(
        target=_is_killed_while_it_writes_the_best, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert load_checkpoint_file(tmp_path / "best_accuracy.pth")["meta"]["epoch"] == 1
    runner = with_best(tmp_path, [0.9, 0.6], resume=True)
    assert runner.iter == 18
    assert load_checkpoint_file(tmp_path / "best_accuracy.pth")["meta"]["epoch"] == 2
