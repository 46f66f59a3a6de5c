import logging

import pytest
from timed import SteppedClock, Timed, TimedBackend, auto, compiled, train
from toy import needs_compile

from mm_compile import ConfigError, compile_model

pytestmark = needs_compile


@pytest.fixture
def clock(monkeypatch):
    return SteppedClock(monkeypatch)


def messages(caplog):
    return [each.getMessage() for each in caplog.records if "auto" in each.getMessage()]


def test_a_short_run_is_not_compiled_and_is_told_why(clock, caplog):
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(100)
    train(model, clock, 100)
    assert backend.graphs == 0
    assert handle.is_warm
    assert compiled(handle) == [False] * 5
    (line,) = messages(caplog)
    assert "not compiled: 89 steps of 5.5 s are left" in line
    assert "s and to save 49 s" in line
    assert line.rstrip(".").removeprefix("compile: ") in str(handle.report())


def test_a_long_run_compiles(clock, caplog):
    caplog.set_level(logging.INFO, "mm_compile")
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    handle.expect_steps(1000)
    seen = []
    for _ in range(60):
        train(model, clock, 1)
        seen.append(tuple(compiled(handle)))
    assert list(dict.fromkeys(seen)) == [(False,) * 5, (True,) * 5]
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s) == (5.5, 3.0)
    assert steps.startup_s == pytest.approx(30 * backend.graphs)
    (line,) = [line for line in messages(caplog) if "5 regions compiled" in line]
    assert "saves 2.5 s of each step" in line


def test_what_is_not_faster_is_turned_off(clock, caplog):
    model, backend, handle = auto(clock, compiling=30, running=1.5)
    handle.expect_steps(1000)
    train(model, clock, 60)
    assert compiled(handle) == [False] * 5
    (line,) = messages(caplog)
    assert "not compiled: a step takes 5.5 s eager and 8 s compiled" in line
    calls = backend.calls
    train(model, clock, 5)
    assert backend.calls == calls


def test_without_a_word_it_waits_until_the_run_has_been_long(clock):
    model, backend, handle = auto(clock, compiling=30, running=0.5)
    train(model, clock, 180)
    assert backend.graphs == 0
    assert not handle.is_warm
    train(model, clock, 400)
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


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"disable": "always"}, "disable is 'always'; it takes True, False or 'auto'"),
        ({"disable": "auto", "target": ["forward", "val_step"]}, "weighs one method"),
        ({"disable": "auto", "optimizer": True}, "weighs the model alone"),
    ],
)
def test_a_wrong_combination_is_refused(model, cfg, message):
    with pytest.raises(ConfigError, match=message):
        compile_model(model, {"backend": "eager", **cfg})


def test_what_auto_decided_stands_once_in_the_report(clock):
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
