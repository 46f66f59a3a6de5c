import re

import pytest
import torch
from toy import RecordRates

from mm_amp import OptimWrapper
from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.optim import build_param_scheduler, build_param_schedulers

WARM_UP = {"type": "LinearLR", "start_factor": 0.25, "by_epoch": False, "begin": 0, "end": 4}


@pytest.fixture
def optimizer():
    return make_optimizer()


def make_optimizer(**options):
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], **{"lr": 1.0, **options})


def rates_of(optimizer, *schedulers, steps):
    """The learning rate before each of ``steps`` steps of the optimizer and the schedulers."""
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return rates


def make(optimizer, cfg, *, num_epochs=10, num_iters=100):
    return build_param_scheduler(optimizer, cfg, num_epochs=num_epochs, num_iters=num_iters)


@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize(
    "cfg",
    [{"type": "ConstantLR", "factor": 0.25}, {"type": "LinearLR", "start_factor": 0.25}],
    ids=["constant", "linear"],
)
def test_a_window_of_one_step_has_the_first_value_for_good(optimizer, cfg, begin):
    scheduler = make(optimizer, {**cfg, "begin": begin, "end": begin + 1})
    rates = rates_of(optimizer, scheduler, steps=begin + 4)
    assert rates == [1.0] * begin + [0.25] * 4


def test_a_warm_up_by_iteration_and_steps_by_epoch_act_together(make_runner):
    recorded = RecordRates()
    make_runner(
        train_cfg={"max_epochs": 3},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}},
        param_scheduler=[
            {**WARM_UP, "end": 8},
            {"type": "MultiStepLR", "milestones": [1, 2], "gamma": 0.5, "by_epoch": True},
        ],
        custom_hooks=[recorded],
    ).train()
    warm_up = [0.25 + 0.75 * min(step, 7) / 7 for step in range(18)]
    decay = [1.0] * 6 + [0.5] * 6 + [0.25] * 6
    assert recorded.rates == pytest.approx(
        [a * b for a, b in zip(warm_up, decay, strict=True)], rel=1e-9
    )


CHAIN = [
    WARM_UP,
    {"type": "CosineAnnealingLR", "by_epoch": False, "begin": 4, "end": 12},
    {"type": "MultiStepLR", "milestones": [3, 9], "by_epoch": False},
]


@pytest.mark.parametrize("stop", [3, 4, 11], ids=str)
def test_a_schedule_goes_on_from_its_state(stop):
    whole = make_optimizer()
    expected = rates_of(whole, *(make(whole, cfg) for cfg in CHAIN), steps=14)

    first = make_optimizer()
    before = [make(first, cfg) for cfg in CHAIN]
    assert rates_of(first, *before, steps=stop) == expected[:stop]
    states = [scheduler.state_dict() for scheduler in before]

    second = make_optimizer()
    after = [make(second, cfg) for cfg in CHAIN]
    second.load_state_dict(first.state_dict())
    for scheduler, state in zip(after, states, strict=True):
        scheduler.load_state_dict(state)
    assert rates_of(second, *after, steps=14 - stop) == expected[stop:]


def test_accumulating_steps_advance_a_schedule_by_iteration_without_a_warning(make_runner):
    recorded = RecordRates()
    make_runner(
        train_cfg={"max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}, "accumulative_counts": 3},
        param_scheduler=WARM_UP,
        custom_hooks=[recorded],
    ).train()
    assert recorded.rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0], rel=1e-12)


def test_an_unknown_schedule_has_one_list_of_all_and_one_hint(optimizer):
    cfg = {"type": "CosineAnealingMomentum", "T_max": 3}
    with pytest.raises(ComponentNotFoundError) as caught:
        build_param_schedulers(OptimWrapper(optimizer), cfg, num_epochs=9, num_iters=9)
    said = str(caught.value)
    assert said.count("Did you mean") == 1
    listed = re.search(r"there are: ([^.]*)\.", said).group(1).split(", ")
    assert listed == sorted(set(listed))
    assert {"LambdaLR", "PolyMomentum", "CosineAnnealingMomentum"} < set(listed)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ("StepLR", r"param_scheduler: a dict with the key 'type'.*got 'StepLR'"),
        (
            [{"type": "StepLR", "step_size": 1}, {"type": "StepLR"}],
            r"param_scheduler\[1\]\.step_size: StepLR needs this argument",
        ),
        (
            {"type": "StepLR", "step_size": 1, "begin": 3, "end": 3},
            r"param_scheduler: begin=3 and end=3 were given,.* 0 <= begin < end",
        ),
        (
            {"type": "CosineAnnealingLR", "begin": 9, "convert_to_iter_based": True},
            r"param_scheduler: begin=9 and end=None were given, and the run ends after 9",
        ),
    ],
    ids=["text", "missing", "window", "window-of-run"],
)
def test_wrong_schedules_are_named_by_their_path(optimizer, cfg, message):
    with pytest.raises(ConfigError, match=message):
        build_param_schedulers(OptimWrapper(optimizer), cfg, num_epochs=9, num_iters=9)
