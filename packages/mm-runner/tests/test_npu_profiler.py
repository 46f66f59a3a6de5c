"""NPUProfilerHook, with a stand-in for torch_npu: there is no NPU here."""

import importlib
import json
import sys

import pytest
import torch
from toy import NO_VALIDATION

import mm_npu
from mm_runner import ConfigError
from mm_runner.diagnostics import NPUProfilerHook

# What torch_npu's profiler is asked, in the forms of its source: the handler says where the next
# recording goes, so that it has no effect on one that has begun; a profile has no key_averages.
_PROFILER = """
import json, os

class ProfilerActivity:
    CPU, NPU = "cpu", "npu"

FOLDER = [None]

def tensorboard_trace_handler(dir_name=None, worker_name=None, analyse_flag=True):
    FOLDER[0] = dir_name
    return lambda done: done.analyse()

class schedule:
    def __init__(self, wait, active, warmup=0, repeat=0, skip_first=0):
        self.first = skip_first + wait + warmup
        self.warm = skip_first + wait if warmup else None
        self.last = self.first + active - 1
        assert repeat == 1

class profile:
    def __init__(self, *, activities=None, schedule=None, on_trace_ready=None, record_shapes=False,
                 profile_memory=False, with_stack=False, with_flops=False, with_modules=False):
        self.activities, self.schedule, self.ready = sorted(activities), schedule, on_trace_ready
        self.number, self.recorded, self.folder = 0, [], None

    def start(self):
        self.note()

    def note(self):
        if self.number in (self.schedule.warm, self.schedule.first) and self.folder is None:
            self.folder = FOLDER[0] or "."
        if self.schedule.first <= self.number <= self.schedule.last:
            self.recorded.append(self.number)

    def step(self):
        ended = self.number == self.schedule.last
        self.number += 1
        if ended:
            self.ready(self)
        self.note()

    def stop(self):
        pass

    def analyse(self):
        os.makedirs(self.folder, exist_ok=True)
        told = [self.activities, self.recorded, os.environ.get("GE_PROFILING_TO_STD_OUT")]
        with open(os.path.join(self.folder, "trace_view.json"), "w") as file:
            json.dump(told, file)
"""


def _forget():
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_npu"]:
        del sys.modules[name]
    mm_npu.npu_unavailable_reason.cache_clear()
    importlib.invalidate_caches()


@pytest.fixture
def torch_npu(tmp_path, monkeypatch):
    """A package torch_npu on disk that finds an NPU."""
    package = tmp_path / "site" / "torch_npu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import npu, profiler\n")
    (package / "npu.py").write_text("def is_available():\n    return True\n")
    (package / "profiler.py").write_text(_PROFILER)
    release = ".".join(torch.__version__.split(".")[:2])
    metadata = package.parent / f"torch_npu-{release}.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {release}.0\n"
    )
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.chdir(tmp_path)
    _forget()
    yield
    _forget()


@pytest.fixture
def train(make_runner):
    """``train(**options)`` trains twelve steps on the CPU with the hook; return how many ran."""

    def train(*hooks, **options):
        runner = make_runner(
            custom_hooks=[{"type": "NPUProfilerHook", **options}, *hooks],
            env_cfg={"dist_cfg": {"device_type": "cpu"}},
            default_hooks={"checkpoint": None},
            **NO_VALIDATION,
        )
        try:
            runner.train()
        except SystemExit as ended:
            assert ended.code == 0  # noqa: PT017 - it may, or may not
            return runner.iter + 1
        return runner.iter

    return train


def recorded(folder):
    return json.loads((folder / "trace_view.json").read_text())


@pytest.mark.usefixtures("torch_npu")
def test_the_first_step_is_profiled_and_the_program_ends(train, tmp_path):
    assert train() == 1
    assert recorded(tmp_path / "cann_profiling") == [["npu"], [0], None]


@pytest.mark.usefixtures("torch_npu")
def test_any_steps_are_profiled_and_training_may_go_on(train, tmp_path):
    folder = tmp_path / "there"
    options = {"exit_after_profiling": False, "use_e2e_profiler": True}
    assert train(begin=3, end=6, result_path=str(folder), **options) == 12
    assert recorded(folder) == [["cpu", "npu"], [3, 4, 5], None]


@pytest.mark.usefixtures("torch_npu")
def test_the_graph_engine_reports_while_training(train, tmp_path, monkeypatch):
    monkeypatch.setenv("GE_PROFILING_TO_STD_OUT", "")  # is removed after the test
    monkeypatch.delenv("GE_PROFILING_TO_STD_OUT")
    train(ge_profiling_to_std_out=True)
    assert recorded(tmp_path / "cann_profiling")[2] == "1"


def test_without_torch_npu_one_error_says_what_is_missing(train):
    _forget()
    with pytest.raises(ConfigError, match=r"asked for, but torch_npu is not .* ProfilerHook prof"):
        train()


def test_wrong_arguments_are_named():
    message = r"NPUProfilerHook\.end: an integer >= 3 is needed, got 2"
    with pytest.raises(ConfigError, match=message):
        NPUProfilerHook(begin=2, end=2)
