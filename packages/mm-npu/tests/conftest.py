import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
import torch

from mm_npu import npu_unavailable_reason
from mm_npu._optimizers import _npu_fused

# A stand-in for torch_npu, not a copy of it: what mm_npu asks of it, and what it does wrong.
STAND_IN = """
import torch
from . import npu, optim, profiler
"""
STAND_IN_NPU = """
from types import SimpleNamespace as _Namespace

CALLS = []
config = _Namespace()

def is_available():
    return AVAILABLE

def device_count():
    return 2

def get_device_name(index):
    CALLS.append(("get_device_name", index))
    if index == 1:
        raise RuntimeError("the device does not answer")
    return "Ascend910B1"

def set_compile_mode(jit_compile=False):
    CALLS.append(("set_compile_mode", jit_compile))
"""
STAND_IN_PROFILER = """
class ProfilerActivity:
    CPU, NPU = "cpu", "npu"
"""
STAND_IN_OPTIM = Path(__file__).with_name("stand_in_optim.py").read_text(encoding="utf-8")
RELEASE = ".".join(torch.__version__.split(".")[:2])


def forget_torch_npu():
    for name in [name for name in sys.modules if name.split(".")[0] == "torch_npu"]:
        del sys.modules[name]
    npu_unavailable_reason.cache_clear()
    invalidate_caches()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Look for torch_npu anew in each test, warn anew, and read no variable of the machine."""
    for name in ("MM_NPU_STRICT", "MM_NPU_JIT_COMPILE", "MM_NPU_INTERNAL_FORMAT", "NPUJITCompile"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_npu_fused, "_warned", set())
    forget_torch_npu()
    yield
    forget_torch_npu()


@pytest.fixture
def put_torch_npu(tmp_path, monkeypatch):
    """Give a function that puts a package torch_npu, a real one on disk, on sys.path."""

    def put(init=STAND_IN, *, available=True, release=f"{RELEASE}.7"):
        package = tmp_path / "site" / "torch_npu"
        package.mkdir(parents=True)
        files = {
            "__init__.py": init,
            "npu.py": STAND_IN_NPU.replace("AVAILABLE", str(available)),
            "optim.py": STAND_IN_OPTIM,
            "profiler.py": STAND_IN_PROFILER,
        }
        for name, text in files.items():
            (package / name).write_text(text, encoding="utf-8")
        metadata = package.parent / f"torch_npu-{release}.dist-info"
        metadata.mkdir()
        text = f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {release}\n"
        (metadata / "METADATA").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(package.parent)
        forget_torch_npu()
        return package.parent

    return put
