"""Lines that make the host wait for the device; a stand-in reports what CUDA would."""

import warnings

import pytest
import torch
from toy import NO_VALIDATION, Classifier, log_of
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.diagnostics import HostSyncHook
from mm_runner.hooks import Hook

_WAITS = "called a synchronizing CUDA operation"


class _Mode:
    """``torch.cuda.set_sync_debug_mode``."""

    now = "default"

    def __call__(self, mode):
        self.now = mode


@pytest.fixture
def mode(monkeypatch):
    mode = _Mode()
    monkeypatch.setattr(torch.cpu, "set_sync_debug_mode", mode, raising=False)
    return mode


def make(make_runner, mode, hook, *hooks, **overrides):
    class Waits(Classifier):
        def forward(self, inputs, labels, mode_="tensor", **kwargs):
            if mode.now == "warn":
                warnings.warn(_WAITS, stacklevel=1)
            return super().forward(inputs, labels, kwargs.get("mode", mode_))

    return make_runner(model={"type": Waits}, custom_hooks=[*hooks, hook], **overrides)


def test_each_wait_is_logged_with_its_line_and_its_hook(make_runner, mode):
    class WaitsToo(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if mode.now == "warn":
                warnings.warn(_WAITS, stacklevel=1)
            warnings.warn("of another kind", stacklevel=1)

        @override
        def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            assert mode.now == "default"

    hook = HostSyncHook(begin=2, iters=4)
    runner = make(make_runner, mode, hook, WaitsToo())
    with pytest.warns(UserWarning, match="of another kind"):
        runner.train()
    assert [(origin.rpartition(" ")[2], n) for origin, n in sorted(hook.counts.items())] == [
        ("after_train_iter", 4),
        ("forward", 4),
    ]
    assert "in 4 steps the host waited for the device 2 times each" in log_of(runner)
    assert "WaitsToo, tests/test_host_sync.py:" in log_of(runner)
    assert mode.now == "default"


def test_a_training_that_fails_leaves_the_mode_as_it_was(make_runner, mode):
    class Fails(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            raise ArithmeticError

    runner = make(make_runner, mode, HostSyncHook(begin=0), Fails(), **NO_VALIDATION)
    showwarning = warnings.showwarning
    with pytest.raises(ArithmeticError):
        runner.train()
    assert mode.now == "default"
    assert warnings.showwarning is showwarning


def test_too_short_a_training_and_other_devices_are_said(make_runner, mode, monkeypatch):
    runner = make(make_runner, mode, HostSyncHook(begin=12), **NO_VALIDATION)
    runner.train()
    assert "in 0 steps the host waited" in log_of(runner)
    monkeypatch.undo()
    runner = make(make_runner, mode, HostSyncHook(begin=0), **NO_VALIDATION)
    runner.train()
    assert "HostSyncHook counts nothing: torch reports no synchronization on cpu" in log_of(runner)


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigError, match=r"HostSyncHook\.iters: an integer >= 1 is needed, got 0"):
        HostSyncHook(iters=0)
