import itertools
import logging

import pytest
import torch.distributed as dist
from timed import Blocks, SteppedClock, Timed, TimedBackend, auto, compiled, train
from toy import needs_compile

from mm_compile import ConfigError, compile_model
from mm_compile._torch import shares_code
from mm_compile._warm_up._auto_plan import AutoPlan
from mm_compile._warm_up._steps import StepTimer

pytestmark = needs_compile
by_kind = pytest.mark.skipif(not shares_code(), reason="this torch compiles every block anew")


@pytest.fixture
def clock(monkeypatch):
    clock = SteppedClock()
    monkeypatch.setattr("mm_compile._warm_up._warm_up.clock_for", lambda _model: clock)
    return clock


def messages(caplog):
    return [each.getMessage() for each in caplog.records if "auto" in each.getMessage()]


@by_kind
def test_a_short_run_is_not_compiled_and_is_told_why(clock, caplog):
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(100)
    train(model, clock, 100)
    assert backend.graphs == 0
    assert handle.is_warm
    assert compiled(handle) == [False] * 5
    (line,) = messages(caplog)
    assert "not compiled: 89 steps of 5.5 s are left" in line
    assert "expected to take 30 s and to save 29 s" in line
    assert line.rstrip(".").removeprefix("compile: ") in str(handle.report())


@by_kind
def test_a_long_run_compiles_kind_by_kind_as_long_as_it_pays(clock, caplog):
    caplog.set_level(logging.INFO, "mm_compile")
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(1000)
    seen = []
    for _ in range(60):
        train(model, clock, 1)
        seen.append(tuple(compiled(handle)))
    assert list(dict.fromkeys(seen)) == [
        (False,) * 5,
        (True,) * 3 + (False,) * 2,
        (True,) * 5,
    ]
    # The three equal ones share a graph on a torch that can; what compiling took tells the rest.
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s) == (5.5, 3.0)
    assert steps.startup_s == pytest.approx(30 * backend.graphs)
    (line,) = [line for line in messages(caplog) if "5 of 5 regions compiled" in line]
    assert "saves 2.5 s of each step" in line


@by_kind
def test_what_is_not_faster_is_turned_off(clock, caplog):
    model, backend, handle = auto(clock, compiling=30, running=1.5)
    handle.expect_steps(1000)
    train(model, clock, 60)
    assert compiled(handle) == [False] * 5
    (line,) = messages(caplog)
    assert "not compiled: a step takes 5.5 s without it and 7 s with it" in line
    calls = backend.calls
    train(model, clock, 5)
    assert backend.calls == calls


@by_kind
def test_the_second_kind_is_left_where_the_rest_of_the_run_is_too_short(clock, caplog):
    caplog.set_level(logging.INFO, "mm_compile")
    model, _, handle = auto(clock, compiling=400, running=0.5)
    handle.expect_steps(600)
    train(model, clock, 100)
    assert compiled(handle) == [True] * 3 + [False] * 2
    (line,) = [line for line in messages(caplog) if "3 of 5 regions compiled" in line]
    assert "compiling more is expected to take" in line


@by_kind
def test_without_a_word_it_waits_until_the_run_has_been_long(clock):
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    train(model, clock, 180)
    assert backend.graphs == 0
    assert not handle.is_warm
    train(model, clock, 60)
    assert compiled(handle) == [True] * 5


@pytest.mark.parametrize(("steps", "is_compiled"), [(200, False), (2000, True)])
def test_a_model_as_a_whole_is_weighed_too(clock, steps, is_compiled):
    model = Timed(clock, 1.0)
    backend = TimedBackend(clock, compiling=30, running=0.5)
    handle = compile_model(model, {"disable": "auto", "backend": backend})
    handle.expect_steps(steps)
    train(model, clock, 60)
    assert handle.is_warm
    assert compiled(handle) == [is_compiled]
    assert ("saves 500 ms" in str(handle.report())) is is_compiled


def test_a_trial_that_compiles_in_every_step_ends():
    clock, graphs = SteppedClock(), itertools.count()
    plan = AutoPlan([1])
    plan.expect(100_000)
    timer = StepTimer(clock, lambda: next(graphs) if stage else 0)
    stage, decisions = 0, []
    for number in range(1, 200):
        clock.now += 1.0
        timer.begin(stage)
        decision = plan.decide(timer, number)
        if decision is not None:
            stage = decision.stage
            decisions.append((number, decision))
            if decision.is_final:
                break
    (began, trial), (ended, end) = decisions
    assert trial.compiled == (0,)
    assert ended == began + 101
    assert (end.compiled, end.is_refusal) == ((), True)
    assert "after 100 steps it is still being compiled for other inputs" in end.message


def test_auto_is_short_for_what_cannot_go_wrong(clock):
    handle = compile_model(Blocks(clock), "auto")
    assert len(handle.regions) == 5
    assert handle.enabled
    assert "not known yet" in handle.regions[0].failure


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"disable": "always"}, "disable is 'always'; it takes True, False or 'auto'"),
        ({"disable": "auto", "target": ["forward", "val_step"]}, "weighs one method"),
        ({"disable": "auto", "optimizer": True}, "weighs the model alone"),
        ({"disable": "auto", "measure": True}, "Drop measure"),
        ({"measure": -1}, "measure is -1"),
        ({"measure": 3, "target": "predict"}, "none of these runs in one"),
    ],
)
def test_a_wrong_combination_is_refused(model, cfg, message):
    with pytest.raises(ConfigError, match=message):
        compile_model(model, {"backend": "eager", **cfg})


def test_what_auto_decided_stands_once_in_the_receipt(clock):
    model, _, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(20)
    train(model, clock, 20)
    text = str(handle.report())
    assert text.count("auto, after") == 1
    assert "not compiled: blocks.0 (Sequential) and 4 more: as auto decided" in text
    assert handle.regions[0].failure == handle.report().decision


def test_regions_that_do_not_compile_gain_nothing(clock, caplog):
    model = Timed(clock, 1.0)

    def refusing(_graph_module, _inputs):
        clock.now += 30
        model._seconds = 0.5  # the machine is faster meanwhile
        raise NotImplementedError("no kernel")

    cfg = {"disable": "auto", "backend": refusing, "on_error": "eager"}
    handle = compile_model(model, cfg)
    handle.expect_steps(2000)
    train(model, clock, 60)
    assert handle.is_warm
    report = handle.report()
    assert report.steps is None
    assert "not compiled: what was tried runs eagerly: NotImplementedError" in report.decision
    assert report.decision in messages(caplog)[-1]


def run_auto_on_ranks(rank, directory):
    logging.basicConfig(filename=directory / f"{rank}.log", level=logging.WARNING)
    clock = SteppedClock()
    patch = pytest.MonkeyPatch()
    patch.setattr("mm_compile._warm_up._warm_up.clock_for", lambda _model: clock)
    model, _, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(60)
    for _ in range(60):
        train(model, clock, 1)
        dist.barrier()
    assert handle.is_warm
    assert "auto, after" in str(handle.report())
    logging.shutdown()
    patch.undo()


def test_the_first_rank_alone_warns_of_what_auto_decided(run_ranks, tmp_path):
    run_ranks(run_auto_on_ranks, 2, tmp_path)
    told = [(tmp_path / f"{rank}.log").read_text().count("auto, after") for rank in range(2)]
    assert told == [1, 0]
