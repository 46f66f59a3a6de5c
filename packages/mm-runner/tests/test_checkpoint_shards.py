"""Checkpoints of sharded models, in folders of torch's; a real sharded model on gloo ranks."""

import errno
import os
import pickle
import re
import time
import uuid
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from test_ema import Flat, assert_equal
from toy import Killed, StopBeforeEpoch, loader_cfg, runner_arguments

from mm_runner import CheckpointError, Runner
from mm_runner.checkpoint import (
    FORMAT_VERSION,
    load_checkpoint_file,
    remove_checkpoint,
    remove_leftovers,
    save_checkpoint_file,
)
from mm_runner.hooks import Hook

_VERSION = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
needs_sharding = pytest.mark.skipif(_VERSION < (2, 8), reason="sharding on the CPU needs torch 2.8")
needs_folders = pytest.mark.skipif(_VERSION < (2, 4), reason="older torch gathers")
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is (disabled|unavailable):UserWarning"
)

WHOLE = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)


def folder_of(path):
    folder = path.with_name(f"{path.name}.shards-{uuid.uuid4().hex[:12]}")
    folder.mkdir(parents=True)
    return folder


def sharded(path):
    """Write a checkpoint whose tensor is in a folder, as one process of torch does."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - slow

    folder = folder_of(path)
    dcp.save({"state_dict.w": WHOLE}, storage_writer=dcp.FileSystemWriter(folder))
    meta = {"format_version": FORMAT_VERSION}
    content = {"meta": meta, "state_dict": {"w": None, "b": 1}, "shards": folder.name}
    save_checkpoint_file(content, path)
    return folder


@needs_folders
def test_a_folder_is_joined_and_what_lacks_it_is_damaged(tmp_path):
    path = tmp_path / "epoch_1.pth"
    folder = sharded(path)
    content = load_checkpoint_file(path)
    assert list(content["state_dict"]) == ["w", "b"]
    assert torch.equal(content["state_dict"]["w"], WHOLE)
    (shard,) = folder.glob("*.distcp")
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="is damaged: it is cut off"):
        load_checkpoint_file(path, shards=False)
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"epoch_1\.pth is damaged: the folder of"):
        load_checkpoint_file(path)


@needs_folders
def test_what_killed_runs_left_is_removed(tmp_path):
    path = tmp_path / "epoch_1.pth"
    replaced = sharded(path)
    present = sharded(path)
    left = folder_of(tmp_path / "epoch_3.pth")
    assert sorted(remove_leftovers(tmp_path)) == sorted([replaced, left])
    assert present.is_dir()
    assert torch.equal(load_checkpoint_file(path)["state_dict"]["w"], WHOLE)
    remove_checkpoint(path)
    assert list(tmp_path.iterdir()) == []


@needs_folders
def test_a_folder_outside_is_not_read(tmp_path):
    secret = sharded(tmp_path / "secret.pth")
    path = tmp_path / "run" / "epoch_1.pth"
    sharded(path)
    content = torch.load(path, weights_only=True)
    for folder in (f"../{secret.name}", str(secret), ".."):
        content["shards"] = folder
        save_checkpoint_file(content, path)
        with pytest.raises(CheckpointError, match=r"has to be a bare file name"):
            load_checkpoint_file(path)


@needs_folders
def test_shapes_that_the_files_cannot_fill_take_no_memory(tmp_path):
    path = tmp_path / "epoch_1.pth"
    metadata = sharded(path) / ".metadata"
    content = pickle.loads(metadata.read_bytes())  # noqa: S301 - written above
    content.state_dict_metadata["state_dict.w"].size = torch.Size([2**40])
    metadata.write_bytes(pickle.dumps(content))
    with pytest.raises(CheckpointError, match="files hold less than the"):
        load_checkpoint_file(path)


class Shell:
    def __reduce__(self):
        return os.system, ("touch victim",)


@needs_folders
def test_no_code_runs_because_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "epoch_1.pth"
    metadata = sharded(path) / ".metadata"
    written = metadata.read_bytes()
    metadata.write_bytes(pickle.dumps(Shell()))
    with pytest.raises(CheckpointError, match=r"it names posix\.system"):
        load_checkpoint_file(path)
    metadata.write_bytes(written.replace(b"__0_0.distcp", b"../x.distcp1"))
    with pytest.raises(CheckpointError, match="bare file name"):
        load_checkpoint_file(path)
    assert not (tmp_path / "victim").exists()


class FullDisk:
    """Lets a process fail on its write with this number, counted from 1."""

    def __init__(self, number):
        from torch.distributed.checkpoint import filesystem  # noqa: PLC0415 - slow

        self.kind, self.count, self.number = filesystem.FileSystemWriter, 0, number

    def __enter__(self):
        self.write = write = self.kind.write_data

        def counted(writer, *arguments):
            self.count += 1
            if self.count == self.number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(writer, *arguments)

        self.kind.write_data = counted

    def __exit__(self, *_):
        self.kind.write_data = self.write


SHARDED = {"type": "MMFullyShardedDataParallel"}


class Scaled(Flat):
    """A model with a buffer, which is not sharded."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 2.0))


def _make(work_dir, *hooks, checkpoint=None, wrapper=SHARDED, **more):
    ema = {"type": "EMAHook", "momentum": 0.1, "strict_load": True}
    arguments = runner_arguments(
        work_dir,
        model={"type": Scaled},
        custom_hooks=[ema, *hooks],
        train_dataloader=loader_cfg(batch_size=3),
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.01}},
        launcher="none",
        default_hooks={"checkpoint": checkpoint or {}},
        **({"cfg": {"model_wrapper_cfg": wrapper}} if wrapper else {}),
        **more,
    )
    return Runner(**arguments)


class Loaded(Hook):
    """Notes how many values of each entry of a checkpoint that is resumed this process has."""

    def __init__(self):
        self.seen = {}

    def after_load_checkpoint(self, runner, checkpoint):  # noqa: ARG002
        for name, value in checkpoint["state_dict"].items():
            if name == "scale":
                continue
            self.seen[name] = (value.to_local().numel(), value.numel())


def _names(work_dir):
    return sorted(re.sub("shards-.*", "shards", path.name) for path in work_dir.glob("epoch_*"))


def _save_late(save, *arguments, **options):
    time.sleep(0.5)  # long enough for training to take further steps
    return save(*arguments, **options)


def _two_ranks(rank, tmp_path):
    from torch.distributed.checkpoint import state_dict_saver  # noqa: PLC0415 - slow

    _make(tmp_path / "whole").train()
    asynchronous = {"async_save": True, "max_keep_ckpts": 1, "save_best": "accuracy"}
    with pytest.raises(Killed):
        _make(tmp_path / "shards", StopBeforeEpoch(1), checkpoint=asynchronous).train()
    loaded = Loaded()
    _make(tmp_path / "shards", loaded, checkpoint=asynchronous, resume=True).train()
    assert all(0 < own < whole for own, whole in loaded.seen.values())
    # Two checkpoints without a stop between them: the second one's copy has the first one's memory.
    copies = {**SHARDED, "device_mesh": (2, 1)}
    with patch.object(state_dict_saver, "save", partial(_save_late, state_dict_saver.save)):
        _make(tmp_path / "copies", checkpoint={"async_save": True}, wrapper=copies).train()
    for in_background in (False, True):
        work_dir = tmp_path / f"full-{in_background}"
        options = {"async_save": in_background, "max_keep_ckpts": 1}
        runner = _make(work_dir, checkpoint=options, train_cfg={"max_epochs": 3})
        with FullDisk(2 * rank):  # the shards of the second process after the second epoch
            runner.train()
        dist.barrier()
        # The first stayed until the third was whole.
        assert _names(work_dir) == ["epoch_3.pth", "epoch_3.pth.shards"]
        if rank == 0:
            log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
            assert log.count("epoch_2.pth failed: ") == 1


@needs_sharding
def test_each_rank_writes_its_shards_and_the_checkpoint_is_the_same(run_ranks, tmp_path):
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - slow

    run_ranks(_two_ranks, 2, tmp_path)
    work_dir = tmp_path / "shards"
    assert _names(work_dir) == ["epoch_2.pth", "epoch_2.pth.shards"]
    (folder,) = work_dir.glob("*.shards-*")
    alone = torch.load(work_dir / "epoch_2.pth", weights_only=True)
    assert torch.equal(alone["state_dict"].pop("scale"), torch.full((3,), 2.0))
    assert set(alone["state_dict"].values()) == {None}
    best = torch.load(work_dir / "best_accuracy.pth", weights_only=True)
    assert best["state_dict"]["first.weight"].shape == (5, 4)
    for name, epoch in (("shards", 2), ("copies", 1), ("copies", 2)):
        expected = load_checkpoint_file(tmp_path / "whole" / f"epoch_{epoch}.pth")
        found = load_checkpoint_file(tmp_path / name / f"epoch_{epoch}.pth")
        for key in ("state_dict", "ema_state_dict"):
            assert list(found[key]) == list(expected[key])
            assert_equal(found[key], expected[key])
        for index, state in expected["optimizer"]["state"].items():
            assert_equal(found["optimizer"]["state"][index], state)
        assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    # torch alone reads the folder: the whole model, buffers too.
    model = Scaled()
    plain = {f"state_dict.{key}": torch.zeros_like(one) for key, one in model.state_dict().items()}
    dcp.load(plain, checkpoint_id=folder)
    assert_equal(plain, {f"state_dict.{key}": one for key, one in expected["state_dict"].items()})
    # One process, and no wrapper: as from any other checkpoint.
    runner = _make(work_dir, wrapper=None, resume=True, train_cfg={"max_epochs": 3})
    runner.train()
    assert (runner.epoch, _names(work_dir)[-1]) == (3, "epoch_3.pth")
