import json

import pytest
import torch
from toy import NO_VALIDATION, log_of
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


def steps_in(path):
    events = json.loads(path.read_text())["traceEvents"]
    return sum(str(event.get("name", "")).startswith("ProfilerStep#") for event in events)


def names_in(path):
    return {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}


def test_the_first_epoch_is_traced_into_the_log_directory(make_runner):
    runner = profile(make_runner)
    path = runner.log_dir / "trace_rank0.json"
    assert "aten::addmm" in names_in(path)
    assert f"the trace is in {path}" in log_of(runner)


def test_steps_are_traced_by_a_schedule(make_runner, tmp_path):
    target = tmp_path / "deep" / "t.json"
    profile(
        make_runner,
        by_epoch=False,
        profile_times=9,
        schedule={"wait": 1, "warmup": 1, "active": 2, "repeat": 2},
        json_trace_path=str(target),
    )
    paths = sorted((tmp_path / "deep").iterdir())
    assert [path.name for path in paths] == ["t.json", "t_2.json"]
    assert [steps_in(path) for path in paths] == [2, 2]


def test_a_trace_may_become_a_table_or_go_to_a_function(make_runner):
    runner = profile(
        make_runner, on_trace_ready={"type": "log_trace", "row_limit": 3}, record_shapes=True
    )
    assert "Self CPU time total" in log_of(runner)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activity_with_cpu": False}, r"both activities are False"),
        (
            {"on_trace_ready": {"type": "tb_trace", "dir": "x"}},
            r"on_trace_ready\.dir: unknown key; .*dir_name",
        ),
        ({"schedule": {"activ": 1}}, r"schedule: torch\.profiler\.schedule refuses"),
    ],
    ids=["nothing", "ready-key", "schedule"],
)
def test_wrong_arguments_are_named(make_runner, options, message):
    with pytest.raises(ConfigError, match=message):
        profile(make_runner, **options)
