"""Checkpoints as MMEngine writes them, by classes of its names that are made up here."""

import builtins
import os
import sys
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import ModuleType

import pytest
import torch
from toy import Classifier

from mm_runner import CheckpointError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.tools import convert_mmengine_checkpoint


class HistoryBuffer:
    def __init__(self, history):
        self._log_history = history
        self._statistics_methods = {"mean": HistoryBuffer.mean}

    def mean(self):
        raise AssertionError("run by the converter")

    def __getstate__(self):
        return self.__dict__

    def __setstate__(self, state):
        raise AssertionError("run by the converter")


class ConfigDict(dict):
    def __reduce_ex__(self, protocol):
        return type(self), (dict(self),)


class Opaque:
    pass


@pytest.fixture
def mmengine(monkeypatch):
    """Modules of MMEngine's names, gone again before anything is converted."""
    for package in ("mmengine", "mmengine.logging", "mmengine.config"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for module, kind in (
        ("mmengine.logging.history_buffer", HistoryBuffer),
        ("mmengine.config.config", ConfigDict),
        ("mmengine.structures", Opaque),
    ):
        made = ModuleType(module)
        setattr(made, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, module, made)
        monkeypatch.setattr(kind, "__module__", module)
    monkeypatch.setattr(HistoryBuffer.mean, "__module__", HistoryBuffer.__module__)
    return monkeypatch


def save(content, path, mmengine):
    torch.save(content, path)
    for module in [name for name in sys.modules if name.startswith("mmengine")]:
        mmengine.delitem(sys.modules, module)


def test_a_checkpoint_with_history_numpy_and_config_is_converted(tmp_path, mmengine, make_runner):
    numpy = pytest.importorskip("numpy")
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sum(parameter.sum() for parameter in model.parameters()).backward()
    optimizer.step()
    content = {
        "meta": {
            "epoch": 1,
            "iter": 6,
            "seed": 5,
            "score": numpy.float32(0.5),
            "mmengine_version": "0.10.7",
            "cfg": ConfigDict(a=ConfigDict(b=[1, 2])),
            "dataset_meta": {"classes": ("x", "y"), "palette": numpy.arange(6.0)},
            "names": defaultdict(list, {"k": ["v"]}),
            "sample": Opaque(),
        },
        "state_dict": OrderedDict((f"module.{k}", v) for k, v in model.state_dict().items()),
        "message_hub": {"log_scalars": {"loss": HistoryBuffer(numpy.arange(3))}},
        "optimizer": optimizer.state_dict(),
        "param_schedulers": [{"_global_step": 6, "last_step": 6, "T_max": 12}],
    }
    save(content, tmp_path / "old.pth", mmengine)
    with pytest.raises(CheckpointError, match=r"something besides.*mm-runner convert"):
        load_checkpoint_file(tmp_path / "old.pth")

    result = convert_mmengine_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth")
    assert (result.epoch, result.iter) == (1, 6)
    assert result.left_out == {
        "message_hub": "MMEngine's logs",
        "meta.score": "numpy",
        "meta.dataset_meta.palette": "numpy",
        "meta.sample": "mmengine.structures.Opaque",
    }
    checkpoint = load_checkpoint_file(tmp_path / "new.pth")
    meta = checkpoint["meta"]
    assert (meta["epoch"], meta["cfg"]) == (1, {"a": {"b": [1, 2]}})
    assert meta["versions"] == {"mmengine_version": "0.10.7"}
    assert meta["names"] == {"k": ["v"]}
    assert meta["dataset_meta"]["classes"] == ("x", "y")
    assert checkpoint["param_schedulers"] == [{"count": 6, "scheduler": None}]
    assert list(checkpoint["state_dict"]) == list(model.state_dict())

    runner = make_runner(
        resume=True,
        load_from=str(tmp_path / "new.pth"),
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
    )
    runner.train()
    assert (runner.epoch, runner.iter, runner.seed) == (2, 12, 5)


def test_weights_alone_are_converted(tmp_path):
    torch.save({"module.a": torch.ones(2)}, tmp_path / "a.pth")
    result = convert_mmengine_checkpoint(str(tmp_path / "a.pth"), tmp_path / "a.pth")
    assert (result.epoch, result.keys) == (None, ["state_dict", "meta"])
    assert list(load_checkpoint_file(tmp_path / "a.pth")["state_dict"]) == ["a"]


class _Call:
    """Unpickled by a loader that runs code, calls ``function``."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


CALLS = {
    "os-system": lambda trace: _Call(os.system, f"touch {trace}"),
    "path-touch": lambda trace: _Call(Path.touch, trace),
    "eval": lambda trace: _Call(builtins.eval, f"open({str(trace)!r}, 'w')"),
    "torch-load": lambda trace: _Call(torch.load, str(trace)),
    "in-a-state": lambda trace: {"meta": {"cfg": [_Call(os.system, f"touch {trace}")]}},
}


@pytest.mark.parametrize("zipped", [True, False], ids=["archive", "old-form"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_in_a_checkpoint_is_refused_and_not_run(tmp_path, name, zipped):
    trace = tmp_path / "code_was_run"
    # With a float, which torch 1.13 reads in a way of its own.
    content = {"state_dict": {}, "lr": 0.5, "extra": CALLS[name](trace)}
    path = tmp_path / "bad.pth"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    for read in (load_checkpoint_file, lambda path: convert_mmengine_checkpoint(path, path)):
        before = path.read_bytes()
        with pytest.raises(CheckpointError, match=r"bad\.pth"):
            read(path)
        assert not trace.exists()
        assert path.read_bytes() == before
    with pytest.raises(
        CheckpointError, match=r"it names \S+\. It is refused, and nothing in it was executed"
    ):
        convert_mmengine_checkpoint(path, tmp_path / "new.pth")
    assert not (tmp_path / "new.pth").exists()


def test_a_method_of_an_allowed_class_is_not_looked_up(tmp_path):
    trace = tmp_path / "code_was_run"
    # getattr(OrderedDict, "fromkeys")(...) through the stand-in: data, and no call.
    torch.save({"state_dict": {}, "x": _Call(getattr, OrderedDict, "fromkeys")}, tmp_path / "a.pth")
    result = convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")
    assert list(result.left_out) == ["x"]
    assert not trace.exists()


def test_a_cut_off_file_is_called_damaged(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(100)}}, tmp_path / "a.pth")
    whole = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "a.pth").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"a\.pth is damaged: it is cut off"):
        convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")


@pytest.mark.parametrize(
    "optimizer",
    [
        {"state": 3, "param_groups": [{"params": [0]}]},
        {"state": {}, "param_groups": [{"params": 3}, 5]},
    ],
    ids=["state", "groups"],
)
def test_entries_of_another_structure_are_one_line(tmp_path, optimizer):
    path = tmp_path / "a.pth"
    torch.save({"state_dict": {"weight": torch.ones(1)}, "optimizer": optimizer}, path)
    with pytest.raises(CheckpointError) as raised:
        convert_mmengine_checkpoint(path, tmp_path / "b.pth")
    assert len(str(raised.value).splitlines()) == 1


def test_an_entry_that_is_no_dict_is_refused(tmp_path):
    torch.save({"state_dict": {"weight": torch.ones(1)}, "meta": [1]}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match="meta is a list, not a dict"):
        convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")


def test_what_is_no_checkpoint_is_called_that(tmp_path):
    path = tmp_path / "a.pth"
    path.write_bytes(b"<!DOCTYPE html><html>404</html>")
    reason = "it is cut off, or no checkpoint: .* begin with b'<!DOCTYPE"
    with pytest.raises(CheckpointError, match=f"a.pth is damaged: {reason}"):
        convert_mmengine_checkpoint(path, path)


def test_an_absent_file_and_one_without_a_dict_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such file"):
        convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")
    torch.save([1], tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"holds a list, not a dict"):
        convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")
