"""Cosines with restarts, alone and beside other schedules of the same setting."""

import pytest
from test_schedules import cosine, make, make_optimizer, values_of

from mm_runner.optim import build_param_schedulers

RESTARTS = {"type": "CosineRestartLR", "by_epoch": False, "periods": [6, 6], "eta_min": 0.05}
STEPS = {"type": "MultiStepLR", "by_epoch": False, "milestones": [4], "gamma": 0.1}
WARM_UP = {"type": "LinearLR", "by_epoch": False, "start_factor": 0.1, "end": 5}


def rates_of(*cfgs, steps=16):
    optimizer = make_optimizer()
    schedulers = [make(optimizer, **cfg, num_iters=100) for cfg in cfgs]
    return [rate for rate, _ in values_of(optimizer, *schedulers, steps=steps)]


def course(step, *, length=6, floor=0.05):
    return cosine(step % length, length, floor)


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_restart_sets_the_base_whatever_others_have_multiplied(order):
    rates = rates_of(*[RESTARTS, STEPS][::order])
    assert rates[:4] == pytest.approx([course(step) for step in range(4)])
    # As CosineAnnealingLR does: the cosine goes on from the lowered value to its floor.
    annealing = {**RESTARTS, "type": "CosineAnnealingLR", "T_max": 6}
    del annealing["periods"]
    assert rates[:6] == pytest.approx(rates_of(*[annealing, STEPS][::order])[:6])
    assert rates[6:12] == pytest.approx([course(step) for step in range(6)])
    assert rates[12:] == [rates[11]] * 4


@pytest.mark.parametrize("order", [1, -1], ids=["first", "last"])
def test_a_warm_up_acts_beside_the_first_period(order):
    restarts = {**RESTARTS, "eta_min": 0}
    rates = rates_of(*[WARM_UP, restarts][::order], steps=12)
    expected = [(0.1 + 0.9 * min(step / 4, 1)) * course(step, floor=0) for step in range(12)]
    assert rates == pytest.approx(expected)


def test_after_a_warm_up_it_begins_from_the_base():
    rates = rates_of(WARM_UP, {**RESTARTS, "begin": 5}, steps=20)
    assert rates[:5] == pytest.approx([0.1, 0.325, 0.55, 0.775, 1.0])
    assert rates[5:17] == pytest.approx([course(step) for step in range(12)], rel=1e-12)


def test_a_period_of_no_weight_is_followed_by_one():
    rates = rates_of({**RESTARTS, "eta_min": 0, "restart_weights": [0, 1]}, STEPS)
    assert rates[:7] == [0.0] * 6 + [1.0]


@pytest.mark.parametrize("cfgs", [[RESTARTS], [WARM_UP, RESTARTS, STEPS]], ids=["alone", "others"])
@pytest.mark.parametrize("stop", [1, 5, 6, 12], ids=str)
def test_it_goes_on_from_its_state(stop, cfgs):
    expected = rates_of(*cfgs)
    first, second = make_optimizer(), make_optimizer()
    before = build(first, cfgs)
    values_of(first, *before, steps=stop)
    after = build(second, cfgs)
    second.load_state_dict(first.state_dict())
    for scheduler, state in zip(after, [one.state_dict() for one in before], strict=True):
        scheduler.load_state_dict(state)
    rates = [rate for rate, _ in values_of(second, *after, steps=16 - stop)]
    assert rates == expected[stop:]


def build(optimizer, cfgs):
    class Wrapper:
        pass

    wrapper = Wrapper()
    wrapper.optimizer = optimizer
    return build_param_schedulers(wrapper, cfgs, num_epochs=10, num_iters=100)
