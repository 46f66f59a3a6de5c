import sysconfig

import pytest
from toy import needs_compile

from mm_compile import CompileSupport, ConfigError, can_compile
from mm_compile import _can_compile as preflight

pytestmark = needs_compile


@pytest.fixture
def _bare_machine(monkeypatch, tmp_path):
    """Leave no compiler on PATH, no Python.h and no triton."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr(preflight, "find_spec", lambda _name: None)


@pytest.mark.usefixtures("_bare_machine")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backends_without_kernels_need_nothing(backend):
    assert can_compile({"backend": backend}) == CompileSupport(ok=True)


@pytest.mark.usefixtures("_bare_machine")
def test_inductor_on_cpu_needs_a_compiler():
    reason = can_compile().reason
    assert reason.startswith("backend 'inductor' on cpu needs a C++ compiler")
    assert "install" in reason


@pytest.mark.usefixtures("_bare_machine")
def test_inductor_on_cpu_needs_headers(monkeypatch, tmp_path):
    compiler = tmp_path / "my-c++"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert "has no Python.h: install" in can_compile().reason
    (tmp_path / "Python.h").touch()
    assert can_compile().ok


@pytest.mark.usefixtures("_bare_machine")
def test_inductor_on_cuda_needs_triton_and_headers(monkeypatch, tmp_path):
    def reason():
        return can_compile(device_type="cuda").reason

    assert "on cuda needs Triton" in reason()
    monkeypatch.setattr(preflight, "find_spec", lambda _name: object())  # stands in for Triton
    assert "on cuda needs Python's headers" in reason()
    (tmp_path / "Python.h").touch()
    assert reason() is None


def test_inductor_needs_code_for_the_device():
    assert "on npu has no code generator" in can_compile(device_type="npu").reason
    assert can_compile({"backend": "eager"}, device_type="npu").ok


def test_a_key_that_needs_another_torch_is_a_reason_and_no_error(monkeypatch):
    monkeypatch.setattr("mm_compile._torch.torch_version", lambda: (2, 3))
    support = can_compile({"backend": "eager", "optimizer": True})
    assert not support.ok
    assert "compile.optimizer needs PyTorch >= 2.4" in support.reason


def test_a_wrong_config_raises():
    with pytest.raises(ConfigError):
        can_compile({"backend": "nothing-like-it"})
