"""``mm-runner find-batch-size``: which batches fit, how fast they are, and what is left."""

import errno
import weakref

import pytest
import torch
from toy import TRAINING_YAML, Classifier, loader_cfg, runner_arguments

from mm_runner import ConfigError
from mm_runner.cli import main
from mm_runner.tools import find_batch_size
from mm_runner.tools._crash import is_out_of_memory

_FITS = 11
_TORCHS = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


class TooSmallDevice(Classifier):
    """A stand-in for a device whose memory holds ``_FITS`` samples; it raises what that raises."""

    batches: list = []  # noqa: RUF012 - of the class: each trial has a model of its own
    models: list = []  # noqa: RUF012
    num_alive: list = []  # noqa: RUF012

    def __init__(self):
        type(self).num_alive.append(sum(one() is not None for one in self.models))
        super().__init__()
        type(self).models.append(weakref.ref(self))

    def forward(self, inputs, labels, mode="tensor"):
        type(self).batches.append(len(labels))
        if len(labels) > _FITS:
            raise _TORCHS("CUDA out of memory. Tried to allocate 20.00 MiB")
        return super().forward(inputs, labels, mode)


def cfg_of(tmp_path, **changes):
    arguments = {"model": {"type": TooSmallDevice}, "train_dataloader": loader_cfg(size=200)}
    return runner_arguments(tmp_path / "unused", **{**arguments, **changes})


@pytest.fixture(autouse=True)
def _new_device():
    for noted in (TooSmallDevice.batches, TooSmallDevice.models, TooSmallDevice.num_alive):
        del noted[:]


def test_the_batch_is_doubled_and_then_bisected(tmp_path):
    trials = []
    largest = find_batch_size(
        cfg_of(tmp_path), report_trial=lambda size, fits: trials.append((size, fits))
    )
    assert trials == [
        (2, True), (4, True), (8, True), (16, False), (12, False), (10, True), (11, True)
    ]  # fmt: skip
    assert largest == _FITS
    assert TooSmallDevice.batches == [2, 2, 4, 4, 8, 8, 16, 12, 10, 10, 11, 11]
    assert TooSmallDevice.num_alive == [0] * 7  # nothing of one trial is left in the next
    assert not list(tmp_path.iterdir())


class Full(Classifier):
    def forward(self, inputs, labels, mode="tensor"):  # noqa: ARG002
        return torch.empty(1 << 60)  # more than any machine has: torch's own error for the host


def test_a_device_that_holds_no_sample_is_told(tmp_path, monkeypatch, capsys):
    assert find_batch_size(cfg_of(tmp_path, model={"type": Full})) == 0
    monkeypatch.chdir(tmp_path)
    text = TRAINING_YAML.replace("toy:Classifier", "test_find_batch_size:Full")
    (tmp_path / "run.yaml").write_text(text)
    assert main(["find-batch-size", "run.yaml"]) == 1
    assert "No batch fits." in capsys.readouterr().out


def test_each_trial_begins_anew_and_a_short_dataset_is_the_limit(tmp_path):
    wrapper = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2}
    model = TooSmallDevice()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    cfg = cfg_of(tmp_path, model=model, optim_wrapper=wrapper, train_dataloader=loader_cfg(size=7))
    assert find_batch_size(cfg) == 7
    assert TooSmallDevice.batches[:3] == [2] * 3
    torch.testing.assert_close(dict(model.state_dict()), before)


def test_errors_that_are_none_of_memory_are_raised(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the size of tensor a (3) must match")

    monkeypatch.setattr(TooSmallDevice, "forward", fail)
    with pytest.raises(RuntimeError, match="must match"):
        find_batch_size(cfg_of(tmp_path))


def caused(cause):
    error = RuntimeError("backend='inductor' raised")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (_TORCHS("x"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("NPU"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        (caused(_TORCHS("x")), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (ValueError("Expected more than 1 value per channel when training"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_errors_of_memory_are_known_by_what_devices_raise(error, expected):
    assert is_out_of_memory(error) == expected


def test_what_does_not_fit_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"got start=9, max=8"):
        find_batch_size(cfg_of(tmp_path), start=9, maximum=8)
    with pytest.raises(ConfigError, match=r"were given without train_cfg; .*give all"):
        find_batch_size(cfg_of(tmp_path, train_cfg=None))


def test_the_command_prints_a_row_for_each_batch(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TRAINING_YAML)
    assert main(["find-batch-size", "run.yaml", "--max", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["2", "fits"]
    assert lines[2] == "Largest that fits: 4, limited by --max."
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]
