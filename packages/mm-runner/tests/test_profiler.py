import json

import pytest
from toy import NO_VALIDATION

from mm_runner import ConfigError
from mm_runner.hooks import ProfilerHook


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
    assert f"the trace is in {path}" in next(runner.log_dir.glob("*.log")).read_text()


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


def test_other_ranks_are_left_out(make_runner):
    runner = profile(make_runner, ranks=[1])
    assert not list(runner.log_dir.glob("trace*"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile_times": 0}, r"profile_times: a positive number, got 0"),
        ({"profile_times": 3}, r"profile_times: 3 was given, and the run has 2 epochs"),
        ({"activity_with_cpu": False}, r"both activities are False"),
        ({"schedule": {"activ": 1}}, r"schedule\.activ: unknown key.*'active'"),
        ({"on_trace_ready": {"type": "log"}}, r"on_trace_ready\.type: 'log_trace' or.*'log'"),
        (
            {"on_trace_ready": {"type": "tb_trace", "dir": "x"}},
            r"on_trace_ready\.dir: unknown key; known are type, dir_name",
        ),
    ],
    ids=["times", "too-many", "nothing", "schedule", "ready", "ready-key"],
)
def test_wrong_arguments_are_named(make_runner, options, message):
    with pytest.raises(ConfigError, match=message):
        profile(make_runner, **options)


def test_what_is_no_function_is_refused():
    with pytest.raises(ConfigError, match=r"on_trace_ready: a function or a dict, got 3"):
        ProfilerHook(on_trace_ready=3)
