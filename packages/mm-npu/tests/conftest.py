import sys
from importlib import invalidate_caches

import pytest

from mm_npu import npu_unavailable_reason
from mm_npu._optimizers import _named

# A stand-in for torch_npu, not a copy of it: just the two things that mm_npu asks of it.
STAND_IN = """
import torch
from . import npu, optim
"""
STAND_IN_NPU = """
def is_available():
    return {available}
"""
STAND_IN_OPTIM = """
import torch

class NpuFusedAdamW(torch.optim.Optimizer):
    '''Stands in for torch_npu's class: takes its arguments, and nothing else.'''

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2,
                 amsgrad=False):
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        super().__init__(params, defaults)

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, dict(lr=lr))

class NpuFusedAdadelta(Plain): pass
class NpuFusedAdam(Plain): pass
class NpuFusedAdamP(Plain): pass
class NpuFusedBertAdam(Plain): pass
class NpuFusedLamb(Plain): pass
class NpuFusedRMSprop(Plain): pass
class NpuFusedRMSpropTF(Plain): pass
class NpuFusedSGD(Plain): pass
"""


def forget_torch_npu():
    for name in [name for name in sys.modules if name.split(".")[0] == "torch_npu"]:
        del sys.modules[name]
    npu_unavailable_reason.cache_clear()
    invalidate_caches()


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """Look for torch_npu anew in each test, warn anew, and read no variable of the machine."""
    monkeypatch.delenv("MM_NPU_STRICT", raising=False)
    monkeypatch.setattr(_named, "_warned", set())
    forget_torch_npu()
    yield
    forget_torch_npu()


@pytest.fixture
def put_torch_npu(tmp_path, monkeypatch):
    """Give a function that puts a package torch_npu, a real one on disk, on sys.path."""

    def put(init=STAND_IN, *, available=True):
        package = tmp_path / "site" / "torch_npu"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(init, encoding="utf-8")
        (package / "npu.py").write_text(STAND_IN_NPU.format(available=available), encoding="utf-8")
        (package / "optim.py").write_text(STAND_IN_OPTIM, encoding="utf-8")
        metadata = package.parent / "torch_npu-9.8.7.dist-info"
        metadata.mkdir()
        text = "Metadata-Version: 2.1\nName: torch_npu\nVersion: 9.8.7\n"
        (metadata / "METADATA").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(package.parent)
        forget_torch_npu()

    return put
