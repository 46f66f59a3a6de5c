import json
import logging
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from timed import SteppedClock, Timed, TimedBackend, train
from torch import nn
from toy import needs_compile, needs_torch_2_4

from mm_compile import ConfigError, can_compile, compile_model
from mm_compile._failure import Failure
from mm_compile._torch import torch_version

SUPPORT = can_compile()


@pytest.fixture
def clock(monkeypatch):
    return SteppedClock(monkeypatch)


def timed_model(clock, **cfg):
    model = Timed(clock, seconds=2.0)
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    return model, backend, compile_model(model, {"backend": backend, **cfg})


@needs_compile
def test_eager_and_compiled_steps_are_timed_in_training_itself(clock, caplog):
    model, backend, handle = timed_model(clock, disable="auto")
    handle.expect_steps(1000)
    caplog.set_level(logging.INFO, "mm_compile")
    train(model, clock, 9)
    assert backend.graphs == 0
    assert not handle.is_warm
    assert handle.report().steps is None
    assert "not compiled: the model (Timed): auto: it is not decided yet" in str(handle.report())
    train(model, clock, 30)
    assert handle.is_warm
    steps = handle.report().steps
    assert (steps.eager_s, steps.compiled_s) == (2.5, 1.5)
    assert steps.startup_s == pytest.approx(30)
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert "step: 1.5 s compiled, by host clock; start-up 30.0 s; 2.5 s eager" in line
    with pytest.raises(ConfigError, match="-1"):
        handle.expect_steps(-1)


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


@needs_compile
@pytest.mark.skipif(torch_version() < (2, 1), reason="this torch keeps no graph breaks")
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
    assert len(first.graph_breaks[0].reason) <= 300
    assert last.graph_breaks == ()
    text = str(report)
    assert "1 of 2 regions compiled" in text
    assert "not compiled: 2 (Linear): NotImplementedError: no kernel for nine" in text
    assert f"graph break in 0 (Breaking) at {place}" in text
    assert "compiled again: 0 (Breaking): " in text


@needs_compile
@needs_torch_2_4
def test_a_report_is_json(clock):
    model, _, handle = timed_model(clock, verify=1)
    train(model, clock, 30)
    plain = json.loads(json.dumps(asdict(handle.report())))
    assert plain["steps"]["compiled_s"] == 1.5
    assert plain["regions"][0]["label"] == "the model (Timed)"
    assert plain["regions"][0]["verified"]["num_calls"] == 1


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


@needs_compile
def test_device_time_is_read_without_waiting_by_a_stand_in_event(monkeypatch):
    class Module:
        Event = FakeEvent

    monkeypatch.setattr(torch, "meta", Module, raising=False)
    model = nn.Linear(2, 2, device="meta")
    handle = compile_model(model, {"backend": "eager"})
    for number in range(9):
        FakeEvent.issued = float(number)
        model(torch.ones(1, 2, device="meta"))
    assert handle.report().steps is None
    FakeEvent.reached = 7.0
    model(torch.ones(1, 2, device="meta"))
    steps = handle.report().steps
    assert (steps.compiled_s, steps.clock) == (1.0, "device events")


@needs_compile
def test_steps_before_and_after_a_region_fell_back_are_not_mixed(clock):
    model = nn.Sequential(Timed(clock, seconds=2.0), Timed(clock, seconds=2.0))
    backend = TimedBackend(clock, compiling=30.0, running=1.0)
    cfg = {"backend": backend, "regions": ["0", "1"], "dynamic": False}
    handle = compile_model(model, {**cfg, "on_error": "eager"})
    train(model, clock, 8)
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


@needs_compile
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


@needs_compile
def test_the_report_counts_from_the_handle_on(model, backend):
    handle = compile_model(model, {"backend": backend, "dynamic": False})
    assert handle.report().graphs == 0
    model(torch.randn(5, 4))
    report = handle.report()
    assert (report.target, report.backend, report.mode) == ("forward", "counting", None)
    assert (report.graphs, report.graph_breaks, report.recompiles) == (1, 0, 0)
    assert report.compile_seconds > 0
    model(torch.randn(6, 4))
    assert handle.report().recompiles == 1
    assert handle.report().graphs == backend.graphs == 2


@pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason))
# Its own imports warn, of another thing in every version of torch.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.usefixtures("inductor_cache")
@needs_torch_2_4
def test_inductor_is_verified_with_dropout_where_it_draws_torchs_numbers():
    def run(**cfg):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        handle = compile_model(model, cfg)
        model(torch.randn(5, 4)).sum().backward()
        return handle, model[0].weight.grad

    handle, _ = run(verify=1)
    assert "fallback_random" in handle.regions[0].verified.note
    options = {"fallback_random": True}
    handle, gradient = run(verify=1, options=options)
    verified = handle.regions[0].verified
    assert (verified.num_calls, verified.note) == (1, None)
    assert verified.deviation <= verified.allowed
    assert "verified: 1 region against eager" in str(handle.report())
    # Random numbers are the same as without.
    _, expected = run(options=options)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=0)
