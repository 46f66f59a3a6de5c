import json

import pytest
import torch
from toy import NO_VALIDATION
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.diagnostics import ProfilerHook
from mm_runner.hooks import Hook


def profile(make_runner, **options):
    runner = make_runner(
        custom_hooks=[{"type": "ProfilerHook", **options}],
        default_hooks={"checkpoint": None},
        **NO_VALIDATION,
    )
    runner.train()
    return runner


def assert_nothing_is_wrapped(runner):
    for stage, methods in runner.hooks_list.methods.items():
        acting = [getattr(one, stage) for one in runner.hooks if type(one).acts_at(stage)]
        assert methods == acting


def steps_in(path):
    events = json.loads(path.read_text())["traceEvents"]
    return sum(str(event.get("name", "")).startswith("ProfilerStep#") for event in events)


def names_in(path):
    return {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}


def test_the_first_epoch_is_traced_into_the_log_directory(make_runner):
    runner = profile(make_runner)
    path = runner.log_dir / "trace_rank0.json"
    assert "aten::addmm" in names_in(path)
    assert f"the trace is in {path}" in next(runner.log_dir.glob("*.log")).read_text()


def test_the_trace_names_what_each_hook_does_and_hooks_are_as_before_then(make_runner):
    runner = profile(make_runner, by_epoch=False, profile_times=3)
    names = names_in(runner.log_dir / "trace_rank0.json")
    assert "RuntimeInfoHook.after_train_iter" in names
    assert "ParamSchedulerHook.after_train_iter" in names
    assert_nothing_is_wrapped(runner)


class RecordsHistory:
    """Stands in for torch.cuda.memory: the calls are those of torch 2.3 and newer."""

    def __init__(self):
        self.calls = []

    def _record_memory_history(self, enabled="all", *, max_entries=None):
        self.calls.append((enabled, max_entries))


@pytest.mark.skipif(not hasattr(torch, "get_default_device"), reason="torch records since 2.3")
def test_the_history_of_memory_is_recorded_until_the_training_ends(make_runner, monkeypatch):
    # A stand-in, since it is recorded on CUDA only: the CPU's module is given the names.
    memory = RecordsHistory()
    monkeypatch.setattr(torch.cpu, "memory", memory, raising=False)

    class Sees(Hook):
        @override
        def after_train(self, runner):
            assert [enabled for enabled, _ in memory.calls] == ["all"]

    make_runner(
        custom_hooks=[{"type": "ProfilerHook", "memory_history": True}, Sees()], **NO_VALIDATION
    ).train()
    assert [enabled for enabled, _ in memory.calls] == ["all", None]
    assert memory.calls[0][1] > 0


def test_a_device_without_a_history_of_memory_is_told(make_runner):
    runner = profile(make_runner, memory_history=True)
    assert "records none on cpu" in next(runner.log_dir.glob("*.log")).read_text()


def test_steps_are_traced_by_a_schedule(make_runner, tmp_path):
    target = tmp_path / "deep" / "t{rank}.json"
    profile(
        make_runner,
        by_epoch=False,
        profile_times=9,
        schedule={"wait": 1, "warmup": 1, "active": 2, "repeat": 2},
        json_trace_path=str(target),
    )
    paths = sorted((tmp_path / "deep").iterdir())
    assert [path.name for path in paths] == ["t0.json", "t0_2.json"]
    assert [steps_in(path) for path in paths] == [2, 2]


def test_a_trace_may_become_a_table_or_go_to_a_function(make_runner):
    runner = profile(
        make_runner, on_trace_ready={"type": "log_trace", "row_limit": 3}, record_shapes=True
    )
    assert "Self CPU time total" in next(runner.log_dir.glob("*.log")).read_text()
    got = []
    profile(make_runner, on_trace_ready=got.append, profile_times=2)
    assert len(got) == 1


def test_a_trace_for_tensorboard_lies_where_it_was_asked_for(make_runner, tmp_path):
    profile(make_runner, on_trace_ready={"type": "tb_trace", "dir_name": str(tmp_path / "tb")})
    assert [path.name.endswith(".pt.trace.json") for path in (tmp_path / "tb").iterdir()] == [True]


def test_a_training_that_fails_is_profiled_no_longer_and_writes_nothing(make_runner, tmp_path):
    class Fails(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 3:
                raise ArithmeticError

    got = []
    for options in ({}, {"on_trace_ready": got.append}):
        profiler = ProfilerHook(by_epoch=False, profile_times=8, **options)
        runner = make_runner(custom_hooks=[Fails(), profiler], **NO_VALIDATION)
        with pytest.raises(ArithmeticError):
            runner.train()
        assert not torch._C._autograd._profiler_enabled()
        assert not list(tmp_path.rglob("trace*"))
    assert got == []
    assert "aten::addmm" in names_in(profile(make_runner).log_dir / "trace_rank0.json")


def test_a_profiler_that_cannot_be_stopped_does_not_hide_the_error(make_runner, monkeypatch):
    class Fails(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            raise ArithmeticError

    stop = torch.profiler.profile.stop

    def fails(self):
        stop(self)
        raise RuntimeError("it does not answer")

    monkeypatch.setattr(torch.profiler.profile, "stop", fails)
    with pytest.raises(ArithmeticError):
        make_runner(custom_hooks=[Fails(), ProfilerHook()], **NO_VALIDATION).train()


def _undecodable(original):
    """What torch's profiler has been seen to do where it reads the name of an event."""

    def fails(self, *arguments):
        original(self, *arguments)
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    return fails


@pytest.mark.parametrize("method", ["stop_trace", "export_chrome_trace"])
@pytest.mark.parametrize(
    "options",
    [{"by_epoch": False, "profile_times": 6, "schedule": {"warmup": 1, "active": 2}}, {}],
    ids=["schedule", "epochs"],
)
def test_an_error_of_torchs_profiler_costs_the_trace_alone(
    make_runner, monkeypatch, options, method
):
    kind = torch.profiler.profile
    with monkeypatch.context() as patch:
        patch.setattr(kind, method, _undecodable(getattr(kind, method)))
        runner = profile(make_runner, with_stack=True, profile_memory=True, **options)
    assert runner.epoch == 2
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert log.count("ERROR") == 1
    assert "ProfilerHook: the trace could not be made or written: UnicodeDecodeError" in log
    assert "Training continues without profiling." in log
    assert not torch._C._autograd._profiler_enabled()
    assert_nothing_is_wrapped(runner)
    again = profile(make_runner)
    assert "aten::addmm" in names_in(again.log_dir / "trace_rank0.json")


def test_an_error_of_a_function_of_ones_own_ends_training(make_runner):
    def fails(_):
        raise ArithmeticError("mine")

    for options in ({"by_epoch": False, "profile_times": 2}, {"schedule": {"warmup": 1}}):
        with pytest.raises(ArithmeticError, match="mine"):
            profile(make_runner, on_trace_ready=fails, **options)


def test_other_ranks_are_left_out(make_runner):
    runner = profile(make_runner, ranks=[1])
    assert not list(runner.log_dir.glob("trace*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile_times": 0}, r"profile_times: an integer >= 1 is needed, got 0"),
        ({"profile_times": 3}, r"profile_times: 3 was given, and the run has 2 epochs"),
        ({"activity_with_cpu": False}, r"both activities are False"),
        ({"on_trace_ready": {"type": "log"}}, r"on_trace_ready\.type: 'log_trace' or.*'log'"),
        (
            {"on_trace_ready": {"type": "tb_trace", "dir": "x"}},
            r"on_trace_ready\.dir: unknown key; known are type, dir_name",
        ),
    ],
    ids=["times", "too-many", "nothing", "ready", "ready-key"],
)
def test_wrong_arguments_are_named(make_runner, options, message):
    with pytest.raises(ConfigError, match=message):
        profile(make_runner, **options)


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match=r"on_trace_ready: a function or a dict, got 3"):
        ProfilerHook(on_trace_ready=3)


@pytest.mark.parametrize(
    "schedule",
    [{"wait": -1}, {"active": 0}, {"repeat": "2"}, {"activ": 1}],
)
def test_a_schedule_that_torch_refuses_is_refused_at_once(schedule):
    with pytest.raises(
        ConfigError, match=r"ProfilerHook\.schedule: torch\.profiler\.schedule refuses"
    ):
        ProfilerHook(schedule=schedule)
