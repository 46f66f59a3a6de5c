import sys

import pytest

from mm_npu import (
    ConfigError,
    NpuSwitches,
    NpuUnavailableError,
    npu_profiler,
    read_npu_switches,
    set_npu_switches,
)


@pytest.fixture
def npu(put_torch_npu):
    put_torch_npu()
    import torch_npu  # noqa: PLC0415 - the stand-in

    return torch_npu.npu


@pytest.mark.parametrize("value", [False, "False", "false", "0", "no", "OFF", " off "])
def test_words_for_no_are_no(npu, value):
    assert set_npu_switches(value, value) == NpuSwitches(jit_compile=False, internal_format=False)
    assert npu.CALLS == [("set_compile_mode", False)]
    assert npu.config.allow_internal_format is False


@pytest.mark.parametrize("value", [True, "True", "1", "yes", "on"])
def test_words_for_yes_are_yes(npu, value):
    assert set_npu_switches(value, value) == NpuSwitches(jit_compile=True, internal_format=True)
    assert npu.CALLS == [("set_compile_mode", True)]
    assert npu.config.allow_internal_format is True


@pytest.mark.parametrize("value", ["maybe", "2", "None", "", 1, 0.0])
def test_anything_else_is_refused_with_what_is_allowed_on_every_machine(value):
    message = r"jit_compile is .*; it takes 1, true, yes, on or True for yes, and 0, false, no, off"
    with pytest.raises(ConfigError, match=message):
        set_npu_switches(jit_compile=value)


def test_nothing_asked_for_leaves_the_defaults_of_torch_npu(npu):
    assert set_npu_switches() == NpuSwitches(None, None)
    assert npu.CALLS == []
    assert vars(npu.config) == {}


def test_variables_are_booleans_too_and_arguments_win(npu, monkeypatch):
    monkeypatch.setenv("NPUJITCompile", "False")  # MMEngine takes that for yes
    assert set_npu_switches().jit_compile is False
    monkeypatch.setenv("MM_NPU_JIT_COMPILE", "on")
    monkeypatch.setenv("MM_NPU_INTERNAL_FORMAT", "0")
    assert set_npu_switches() == NpuSwitches(jit_compile=True, internal_format=False)
    assert set_npu_switches(jit_compile=False).jit_compile is False
    assert [value for _, value in npu.CALLS] == [False, True, False]
    monkeypatch.setenv("MM_NPU_JIT_COMPILE", "perhaps")
    with pytest.raises(ConfigError, match="MM_NPU_JIT_COMPILE is 'perhaps'; it takes 1, true"):
        set_npu_switches()


def test_without_an_npu_there_is_nothing_to_switch(monkeypatch):
    monkeypatch.setenv("MM_NPU_JIT_COMPILE", "1")
    assert set_npu_switches(internal_format=False) == NpuSwitches()


def test_switches_are_read_without_being_set(npu, monkeypatch):
    monkeypatch.setenv("MM_NPU_INTERNAL_FORMAT", "yes")
    assert read_npu_switches("off") == NpuSwitches(jit_compile=False, internal_format=True)
    assert npu.CALLS == []
    with pytest.raises(ConfigError, match="jit_compile is 'maybe'"):
        read_npu_switches("maybe")


def test_torch_npu_is_not_looked_for_without_something_to_switch(put_torch_npu):
    put_torch_npu("raise KeyboardInterrupt")
    assert set_npu_switches() == NpuSwitches()


@pytest.mark.usefixtures("npu")
def test_the_profiler_is_that_of_torch_npu():
    assert npu_profiler() is sys.modules["torch_npu.profiler"]
    assert npu_profiler().ProfilerActivity.NPU == "npu"


def test_without_an_npu_its_profiler_is_refused():
    with pytest.raises(NpuUnavailableError, match="asked for, but torch_npu is not installed"):
        npu_profiler()
