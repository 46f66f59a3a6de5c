"""Checkpoints of which every process writes its part; with a real sharded model on gloo ranks."""

import errno
import re
import struct

import pytest
import torch
import torch.distributed as dist
from test_ema import Flat, assert_equal
from toy import Killed, StopBeforeEpoch, loader_cfg, runner_arguments

from mm_runner import CheckpointError, Runner
from mm_runner.checkpoint import (
    PartsFolder,
    load_checkpoint_file,
    part_name,
    remove_checkpoint,
    remove_orphaned_parts,
    save_checkpoint_file,
)
from mm_runner.hooks import Hook

_VERSION = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
needs_sharding = pytest.mark.skipif(_VERSION < (2, 8), reason="sharding on the CPU needs torch 2.8")


def in_parts(path, halves):
    """Write a checkpoint whose tensor has these rows, each by a process of its own."""
    folder = PartsFolder(path)
    tensors = [{"path": ["state_dict", "w"], "shape": [4, 2], "dtype": "float64"}]
    files = [part_name(rank) for rank in range(len(halves))]
    for name, (begin, values) in zip(files, halves, strict=True):
        chunks = {0: {"offsets": [begin, 0], "values": values}}
        save_checkpoint_file({"chunks": chunks}, folder.path / name)
    parts = {"folder": folder.path.name, "files": files, "tensors": tensors}
    rest = {"meta": {"format_version": 2}, "state_dict": {"w": None, "b": 1}, "parts": parts}
    save_checkpoint_file(rest, path)
    folder.close()
    return folder.path


WHOLE = torch.arange(8.0, dtype=torch.float64).reshape(4, 2)
HALVES = [(0, WHOLE[:3]), (3, WHOLE[3:])]


def test_parts_are_put_together_and_what_lacks_one_is_damaged(tmp_path):
    path = tmp_path / "epoch_1.pth"
    folder = in_parts(path, HALVES)
    content = load_checkpoint_file(path)
    assert list(content["state_dict"]) == ["w", "b"]
    assert "parts" not in content
    assert torch.equal(content["state_dict"]["w"], WHOLE)
    assert load_checkpoint_file(path, whole=False)["state_dict"]["w"] is None
    part = folder / part_name(1)
    written = bytearray(part.read_bytes())
    written[written.index(struct.pack("<d", 7.0))] ^= 1
    part.write_bytes(written)
    with pytest.raises(CheckpointError, match=r"epoch_1\.pth is in parts, .*rank_1\.pth is damag"):
        load_checkpoint_file(path)
    part.unlink()
    with pytest.raises(CheckpointError, match=r"one cannot be read: .*rank_1\.pth .*no such file"):
        load_checkpoint_file(path)
    in_parts(path, HALVES[:1])
    with pytest.raises(CheckpointError, match="damaged: its parts lack values of 1 tensors"):
        load_checkpoint_file(path)
    in_parts(path, [(2, WHOLE)])
    with pytest.raises(CheckpointError, match="damaged: its parts do not fit it"):
        load_checkpoint_file(path)


def test_folders_that_no_checkpoint_names_are_removed_unless_they_are_being_filled(tmp_path):
    path = tmp_path / "epoch_1.pth"
    replaced = in_parts(path, HALVES)
    present = in_parts(path, HALVES)
    writing = PartsFolder(tmp_path / "epoch_2.pth")
    left = PartsFolder(tmp_path / "epoch_3.pth")
    left._file.close()  # as by the end of a killed process
    assert sorted(remove_orphaned_parts(tmp_path)) == sorted([replaced, left.path])
    assert present.is_dir()
    assert writing.path.is_dir()
    assert torch.equal(load_checkpoint_file(path)["state_dict"]["w"], WHOLE)
    remove_checkpoint(path)
    writing.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_outside_is_not_read(tmp_path):
    secret = in_parts(tmp_path / "secret.pth", HALVES)
    path = tmp_path / "run" / "epoch_1.pth"
    in_parts(path, HALVES)
    rest = load_checkpoint_file(path, whole=False)
    for folder in (f"../{secret.name}", str(secret), ".."):
        rest["parts"]["folder"] = folder
        save_checkpoint_file(rest, path)
        with pytest.raises(CheckpointError, match=r"run.*has to be a bare file name"):
            load_checkpoint_file(path)


class FullDisk:
    """Lets ``torch.save`` fail on the call with this number, counted from 1."""

    def __init__(self, number):
        self.save, self.count, self.number = torch.save, 0, number

    def __enter__(self):
        torch.save = self

    def __exit__(self, *_):
        torch.save = self.save

    def __call__(self, content, file):
        self.count += 1
        if self.count == self.number:
            file.write(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        self.save(content, file)


SHARDED = {"type": "MMFullyShardedDataParallel"}


def _make(work_dir, *hooks, checkpoint=None, wrapper=SHARDED, **more):
    ema = {"type": "EMAHook", "momentum": 0.1, "strict_load": True}
    arguments = runner_arguments(
        work_dir,
        model={"type": Flat},
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
    """Notes which entries of a checkpoint that is resumed this process was given values of."""

    def __init__(self):
        self.seen = {}

    def after_load_checkpoint(self, runner, checkpoint):  # noqa: ARG002
        for name, value in checkpoint["state_dict"].items():
            self.seen[name] = value.device.type


def _names(work_dir):
    return sorted(re.sub("parts-.*", "parts", path.name) for path in work_dir.glob("epoch_*"))


def _two_ranks(rank, tmp_path):
    _make(tmp_path / "whole").train()
    asynchronous = {"async_save": True, "max_keep_ckpts": 1, "save_best": "accuracy"}
    with pytest.raises(Killed):
        _make(tmp_path / "parts", StopBeforeEpoch(1), checkpoint=asynchronous).train()
    loaded = Loaded()
    _make(tmp_path / "parts", loaded, checkpoint=asynchronous, resume=True).train()
    assert set(loaded.seen.values()) == {"meta" if rank else "cpu"}
    copies = {**SHARDED, "device_mesh": (2, 1)}
    _make(tmp_path / "copies", checkpoint={"in_parts": True}, wrapper=copies).train()
    for in_background in (False, True):
        work_dir = tmp_path / f"full-{in_background}"
        options = {"in_parts": True, "async_save": in_background, "max_keep_ckpts": 1}
        runner = _make(work_dir, checkpoint=options, train_cfg={"max_epochs": 3})
        with FullDisk(2 * rank):  # the part of the second process after the second epoch
            runner.train()
        dist.barrier()
        # The first stayed until the third was whole.
        assert _names(work_dir) == ["epoch_3.pth", "epoch_3.pth.parts"]
        if rank == 0:
            log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
            assert log.count("epoch_2.pth failed: ") == 1
            assert log.count("No space left on device") == 1


@needs_sharding
def test_each_rank_writes_its_part_and_the_checkpoint_is_the_same(run_ranks, tmp_path):
    run_ranks(_two_ranks, 2, tmp_path)
    work_dir = tmp_path / "parts"
    assert _names(work_dir) == ["epoch_2.pth", "epoch_2.pth.parts"]
    (folder,) = work_dir.glob("*.parts-*")
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0.pth", "rank_1.pth"]
    alone = torch.load(work_dir / "epoch_2.pth", weights_only=True)
    assert set(alone["state_dict"].values()) == {None}
    best = torch.load(work_dir / "best_accuracy.pth", weights_only=True)
    assert best["state_dict"]["first.weight"].shape == (5, 4)
    expected = load_checkpoint_file(tmp_path / "whole" / "epoch_2.pth")
    for name in ("parts", "copies"):
        found = load_checkpoint_file(tmp_path / name / "epoch_2.pth")
        assert found.keys() == expected.keys()
        for key in ("state_dict", "ema_state_dict"):
            assert list(found[key]) == list(expected[key])
            assert_equal(found[key], expected[key])
        for index, state in expected["optimizer"]["state"].items():
            assert_equal(found["optimizer"]["state"][index], state)
        assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    # One process, and no wrapper: as from any other checkpoint.
    runner = _make(work_dir, wrapper=None, resume=True, train_cfg={"max_epochs": 3})
    runner.train()
    assert (runner.epoch, _names(work_dir)[-1]) == (3, "epoch_3.pth")


def test_an_outline_has_shapes_and_leaves_the_tensors_in_the_files(tmp_path):
    path = tmp_path / "epoch_1.pth"
    folder = in_parts(path, HALVES)
    for rank in (0, 1):
        (folder / part_name(rank)).unlink()  # nothing of them is read
    weight = load_checkpoint_file(path, outline=True)["state_dict"]["w"]
    assert (weight.device.type, weight.shape, weight.dtype) == ("meta", WHOLE.shape, WHOLE.dtype)

    save_checkpoint_file({"meta": {}, "state_dict": {"w": WHOLE}}, path)
    written = bytearray(path.read_bytes())
    written[written.index(struct.pack("<d", 7.0))] ^= 1
    path.write_bytes(written)
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint_file(path)
    outlined = load_checkpoint_file(path, outline=True)["state_dict"]["w"]
    assert torch.equal(outlined[:3], WHOLE[:3])
    assert not torch.equal(outlined, WHOLE)
