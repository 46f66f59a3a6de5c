import json
import logging
from pathlib import Path

import pytest
import torch
from blocks import Stack
from timed import SteppedClock, Timed, TimedBackend, train
from torch import nn
from toy import needs_compile

from mm_compile import CompileError, ConfigError, StepTimes, compile_model
from mm_compile._failure import Failure
from mm_compile._step_times import Clock, StepTimer
from mm_compile._torch import torch_version

pytestmark = needs_compile


@pytest.fixture
def clock(monkeypatch):
    clock = SteppedClock()
    monkeypatch.setattr("mm_compile._warm_up.Clock", lambda _model: clock)
    return clock


def timed_model(clock, **cfg):
    model = Timed(clock, seconds=2.0)
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    return model, backend, compile_model(model, {"backend": backend, **cfg})


def test_eager_and_compiled_steps_are_timed_in_training_itself(clock, caplog):
    model, backend, handle = timed_model(clock, measure=3)
    caplog.set_level(logging.INFO, "mm_compile")
    train(model, clock, 5)
    assert backend.graphs == 0
    assert not handle.is_warm
    assert handle.report().steps is None
    assert "not compiled: the model (Timed): its eager step" in str(handle.report())
    train(model, clock, 20)
    assert handle.is_warm
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s, steps.saved_s) == (2.5, 1.5, 1.0)
    assert steps.startup_s == pytest.approx(30)
    assert steps.break_even_steps == 30
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert "saves 1 s of each step, pays after 30 steps" in line
    # Nothing of it is left in a step.
    assert backend.calls == 20


def test_without_measure_everything_is_compiled_from_the_first_call_on(clock):
    model, backend, handle = timed_model(clock)
    train(model, clock, 1)
    assert backend.graphs == 1
    train(model, clock, 15)
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s, steps.break_even_steps) == (None, 1.5, None)
    assert "eager not timed" in str(handle.report())


def test_the_method_that_trains_is_timed_whichever_is_named_first(clock):
    class Engine(Timed):
        def val_step(self, inputs):
            return self(inputs)

    model = Engine(clock, seconds=2.0)
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    cfg = {"backend": backend, "measure": 3, "target": ["val_step", "forward"]}
    handle = compile_model(model, cfg)
    train(model, clock, 30)
    assert (handle.report().steps.eager_s, handle.report().steps.compiled_s) == (2.5, 1.5)


def test_validation_between_two_steps_is_no_part_of_them(clock):
    model, _, handle = timed_model(clock, measure=3)
    for _ in range(8):
        train(model, clock, 4)
        model.eval()
        with torch.no_grad():
            model(torch.randn(3, 4))
            clock.now += 1000
        model.train()
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s) == (2.5, 1.5)
    assert steps.startup_s == pytest.approx(30)


def test_a_run_too_short_to_pay_is_said_to_be(clock):
    model, _, handle = timed_model(clock, measure=3)
    handle.expect_steps(25)
    train(model, clock, 25)
    assert "pays after 30 steps; this run has 25, so compiling does not pay" in str(handle.report())
    with pytest.raises(ConfigError, match="-1"):
        handle.expect_steps(-1)


def test_no_gain_never_pays():
    steps = StepTimes(compiled_s=1.0, eager_s=0.9, startup_s=10.0, clock="host clock")
    assert steps.break_even_steps is None
    assert "does not make it faster" in str(steps)


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs):
        outputs = self.linear(inputs)
        torch._dynamo.graph_break()
        return torch.relu(outputs)


def line_of(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(f"{__file__}:{number}" for number, line in enumerate(lines, 1) if text in line)


def test_the_report_names_what_is_not_compiled_and_why(backend):
    model = nn.Sequential(Breaking(), Breaking(), nn.Linear(4, 4))

    def refusing(graph_module, example_inputs):
        if any(4 in each.shape[1:] and 9 in each.shape for each in example_inputs):
            raise NotImplementedError("no kernel for nine")
        return backend(graph_module, example_inputs)

    handle = compile_model(
        model, {"backend": refusing, "dynamic": False, "regions": ["0", "2"], "on_error": "eager"}
    )
    model(torch.randn(3, 4))
    model[0](torch.randn(5, 4))
    model[2](torch.randn(9, 4))
    report = handle.report()
    first, last = report.regions
    place = line_of("        torch._dynamo.graph_break()")
    assert [each.frame for each in first.graph_breaks] == [place]
    assert "graph_break" in first.graph_breaks[0].reason
    assert len(first.graph_breaks[0].reason) <= 200
    assert last.graph_breaks == ()
    text = str(report)
    assert "1 of 2 regions compiled" in text
    assert "not compiled: 2 (Linear): NotImplementedError: no kernel for nine" in text
    assert f"graph break in 0 (Breaking) at {place}" in text
    assert "compiled again: 0 (Breaking): input 'inputs': dimension 0 was 3, is 5" in text


def test_what_is_said_of_many_regions_is_one_line(backend):
    model = nn.Sequential(*(Breaking() for _ in range(4)))
    handle = compile_model(model, {"backend": backend, "regions": ["*"]})
    model(torch.randn(3, 4, requires_grad=True))
    (line,) = [line for line in str(handle.report()).splitlines() if "graph break in" in line]
    assert "0 (Breaking) and 3 more at" in line


def test_a_report_is_json(clock):
    model, _, handle = timed_model(clock, measure=2, verify=1)
    train(model, clock, 30)
    plain = handle.report().to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["steps"]["saved_s"] == 1.0
    assert plain["regions"][0]["label"] == "the model (Timed)"
    assert plain["regions"][0]["verified"]["num_calls"] == 1


def test_steps_that_are_verified_are_not_timed(clock):
    model, _, handle = timed_model(clock, verify=3)
    train(model, clock, 20)
    assert handle.report().steps.compiled_s == 1.5


def test_a_region_without_a_graph_is_said_to_have_none(caplog):
    class Python(nn.Module):
        def forward(self, inputs):
            return inputs

    model = Python()
    compile_model(model, {"backend": "eager"})
    for _ in range(2):
        model(torch.randn(3, 4))
    (line,) = [each.getMessage() for each in caplog.records if each.name.startswith("mm_compile")]
    assert "the model (Python) has no graph" in line


@pytest.mark.skipif(torch_version() < (2, 6), reason="it compiles nothing under a checkpoint")
def test_recomputations_under_checkpointing_are_no_steps(clock):
    model, _, handle = timed_model(clock, measure=3)
    for _ in range(30):
        inputs = torch.randn(3, 4, requires_grad=True)
        torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False).sum().backward()
        clock.now += 0.5
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s) == (4.5, 2.5)


class FakeEvent:
    """A stand-in for a device's event: known only once the device has come past it."""

    reached = 0.0
    issued = 0.0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        self.at = FakeEvent.issued

    def query(self):
        return self.at <= FakeEvent.reached

    def elapsed_time(self, end):
        assert end.query(), "reading it now would wait for the device"
        return (end.at - self.at) * 1e3


def test_device_time_is_read_without_waiting_by_a_stand_in_event(monkeypatch):
    class Module:
        Event = FakeEvent

    monkeypatch.setattr(torch, "meta", Module, raising=False)
    clock = Clock(nn.Linear(2, 2, device="meta"))
    assert clock.name == "device events"
    assert Clock(nn.Linear(2, 2)).name == "host clock"
    timer = StepTimer(clock)
    for number in range(6):
        FakeEvent.issued = float(number)
        timer.begin(0, 0, 0)
    assert timer.of_stage(0).step_s is None
    FakeEvent.reached = 4.0
    timer.begin(0, 0, 0)
    assert list(timer.of_stage(0).steady) == [1.0, 1.0]


@pytest.mark.skipif(torch_version() < (2, 6), reason="its backward is counted by another name")
def test_the_seconds_of_a_backward_compiled_late_count(monkeypatch):
    from torch._dynamo import utils  # noqa: PLC0415 - imports dynamo

    model = Stack(1)
    handle = compile_model(model, {"backend": "eager"})
    model(torch.randn(3, 4))
    before = handle.report().compile_seconds
    monkeypatch.setitem(utils.compilation_time_metrics, "backward._backward_impl", [100.0])
    assert handle.report().compile_seconds == pytest.approx(before + 100)


class Refusing(TimedBackend):
    width = 9

    def __call__(self, graph_module, example_inputs):
        compiled = super().__call__(graph_module, example_inputs)
        if any(each.shape[:1] == (self.width,) for each in example_inputs):
            raise NotImplementedError("no kernel for nine")
        return compiled


def test_no_step_is_called_compiled_where_nothing_is(clock):
    model = Timed(clock, seconds=2.0)
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    cfg = {"backend": backend, "measure": 3, "dynamic": False, "recompile_limit": 1}
    handle = compile_model(model, {**cfg, "on_recompile": "eager"})
    for number in range(30):
        model(torch.randn(3 + number % 3, 4)).sum().backward()
    assert handle.is_warm
    assert not handle.regions[0].is_compiled
    report = handle.report()
    assert report.steps is None
    assert "step:" not in str(report)
    assert "pays after" not in str(report)


def test_steps_before_and_after_a_region_fell_back_are_not_mixed(clock):
    model = nn.Sequential(Timed(clock, seconds=2.0), Timed(clock, seconds=2.0))
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    cfg = {"backend": backend, "regions": ["0", "1"], "measure": 3, "dynamic": False}
    handle = compile_model(model, {**cfg, "on_error": "eager"})
    train(model, clock, 15)
    # Two compiled regions were timed; from here on there is one.
    assert handle.report().steps.compiled_s == 2.5
    model[1].forward.fall_back(Failure("no kernel"))
    assert handle.report().steps is None
    train(model, clock, 20)
    assert handle.is_warm
    assert handle.report().steps.compiled_s == 3.5
    # Nor is what was timed then told of what runs now.
    model[0].forward.fall_back(Failure("no kernel"))
    assert handle.report().steps is None


def test_a_region_that_raised_is_not_called_compiled(clock):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 9))
    backend = Refusing(clock, compiling=0.0, running=0.0)
    handle = compile_model(model, {"backend": backend, "regions": ["*"]})
    with pytest.raises(CompileError, match="no kernel for nine"):
        model(torch.randn(3, 4))
    assert [each.is_compiled for each in handle.regions] == [True, False]
    text = str(handle.report())
    assert "1 of 2 regions compiled" in text
    assert "not compiled: 1 (Linear): " in text
    assert "no kernel for nine" in text
    backend.width = -1
    model(torch.randn(3, 4))
    assert "2 of 2 regions compiled" in str(handle.report())


def test_a_region_without_a_graph_is_not_called_compiled():
    class Python(nn.Module):
        def forward(self, inputs):
            return inputs

    model = Python()
    handle = compile_model(model, {"backend": "eager"})
    assert handle.regions[0].is_compiled
    model(torch.randn(3, 4))
    text = str(handle.report())
    assert "0 of 1 region compiled" in text
    assert "not compiled: the model (Python): dynamo captured no graph of it" in text
