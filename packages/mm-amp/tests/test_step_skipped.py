"""A step left out because of an overflow: who learns of it, when, and what schedules do."""

import copy

import pytest
import torch
from conftest import needs_cpu_float16, train_step
from torch.optim.lr_scheduler import StepLR

from mm_amp import AmpOptimWrapper


def _overflowing(batch):
    return batch[0], batch[1] * float("inf")


def _wrap(model, *, fused, **options):
    arguments = {"fused": True} if fused else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **arguments)
    return AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16", **options)


@needs_cpu_float16
@pytest.mark.parametrize(
    ("fused", "expected"),
    [
        pytest.param(False, [True, False, True, True, False], id="plain: at once"),
        pytest.param(True, [False, True, False, True, True], id="fused: one step late"),
    ],
)
def test_skip_becomes_known(model, batches, fused, expected):
    wrapper = _wrap(model, fused=fused)
    overflows = [True, False, True, True, False]
    found = []
    for overflows_now, batch in zip(overflows, batches, strict=False):
        train_step(wrapper, model, _overflowing(batch) if overflows_now else batch)
        found.append(wrapper.step_skipped)
    assert found == expected
    assert wrapper.num_skipped == 3


@needs_cpu_float16
@pytest.mark.parametrize("num_skipped", [1, 2])
def test_momentum_of_fused_sgd_begins_with_the_first_step_that_is_taken(
    model, batches, num_skipped
):
    twin = copy.deepcopy(model)
    for one, fused in ((model, True), (twin, False)):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9, fused=fused)
        wrapper = AmpOptimWrapper(optimizer, {"init_scale": 64.0}, "float16")
        for index, batch in enumerate(batches[:6]):
            train_step(wrapper, one, _overflowing(batch) if index < num_skipped else batch)
        assert wrapper.num_skipped == num_skipped
    torch.testing.assert_close(model.state_dict(), twin.state_dict())


@needs_cpu_float16
@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_schedule_in_a_plain_loop_stays_where_it_is_and_torch_does_not_warn(model, batches, fused):
    wrapper = _wrap(model, fused=fused)
    scheduler = StepLR(wrapper, step_size=1, gamma=0.5)
    for index, batch in enumerate(batches[:6]):
        train_step(wrapper, model, _overflowing(batch) if index in {0, 3} else batch)
        if not wrapper.step_skipped:
            scheduler.step()  # torch's warning of a wrong order would fail the test
    assert scheduler.last_epoch == 4  # six steps, two of them skipped
    assert wrapper.get_lr() == {"lr": [pytest.approx(0.1 * 0.5**4)]}


@needs_cpu_float16
def test_a_skip_known_late_is_in_the_state_of_the_run_that_is_stopped_before(model, batches):
    wrapper, news = _wrap(model, fused=True), []
    for index, batch in enumerate(batches[:4]):
        train_step(wrapper, model, _overflowing(batch) if index in {1, 2} else batch)
        news.append(wrapper.step_skipped)
        state = wrapper.state_dict()
        expected = {1: {"last": True, "num_in_a_row": 0}, 2: {"last": True, "num_in_a_row": 1}}
        assert state.get("skipped_steps") == expected.get(index)
        wrapper = _wrap(model, fused=True)  # as a new process does
        wrapper.load_state_dict(state)
        assert not wrapper.step_skipped
    assert news == [False, False, True, True]
    train_step(wrapper, model, batches[4])
    assert not wrapper.step_skipped
    assert "skipped_steps" not in wrapper.state_dict()
