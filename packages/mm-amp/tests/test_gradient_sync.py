"""Real DDP and fully_shard on two gloo ranks: when gradients are exchanged, and what comes out."""

from contextlib import contextmanager

import pytest
from torch import nn

from mm_amp import OptimWrapper

_RANKS = 2


class _SyncLog(nn.Module):
    """Stands in for a distributed wrapper: notes when gradients would not be exchanged."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.is_off = False

    def forward(self, inputs):
        return self.module(inputs)

    @contextmanager
    def no_sync(self):
        assert not self.is_off, "entered twice"
        self.is_off = True
        try:
            yield
        finally:
            self.is_off = False


@pytest.fixture
def sync_log(model):
    return _SyncLog(model)


def test_deferral_lasts_until_backward_has_returned(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with wrapper.optim_context(sync_log):
        output = sync_log(batches[0][0])
    during = []
    output.register_hook(lambda _: during.append(sync_log.is_off))
    wrapper.update_params(output.mean())
    assert (during, sync_log.is_off) == ([True], False)
    with wrapper.optim_context(sync_log):
        assert not sync_log.is_off  # this one steps


def test_exception_in_the_context_ends_deferral_at_once(sync_log, sgd):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with pytest.raises(KeyError), wrapper.optim_context(sync_log):
        raise KeyError
    assert not sync_log.is_off


def test_exception_in_backward_ends_deferral(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    with wrapper.optim_context(sync_log):
        output = sync_log(batches[0][0])

    def fail(_):
        raise KeyError

    output.register_hook(fail)
    with pytest.raises(KeyError):
        wrapper.backward(output.mean())
    assert not sync_log.is_off
    assert wrapper.inner_count == 0


def test_new_context_ends_a_stale_deferral(sync_log, sgd, batches):
    wrapper = OptimWrapper(sgd, accumulative_counts=2)
    for _ in range(2):  # _SyncLog refuses to be entered twice
        with wrapper.optim_context(sync_log):
            sync_log(batches[0][0])
    assert sync_log.is_off


def test_deferral_finds_a_wrapper_inside_the_model(sync_log, sgd):
    with OptimWrapper(sgd, accumulative_counts=2).optim_context(nn.Sequential(sync_log)):
        assert sync_log.is_off
