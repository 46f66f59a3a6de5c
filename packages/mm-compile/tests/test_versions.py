import pytest
import torch
from toy import needs_compile

from mm_compile import TorchVersionError, can_compile, compile_model


def test_a_torch_without_compile_is_named_with_its_version(model, monkeypatch):
    # On torch 1.13 there is nothing to remove, and this is the real thing.
    monkeypatch.delattr(torch, "compile", raising=False)
    with pytest.raises(TorchVersionError, match=r"needs PyTorch >= 2\.0\.0; this is PyTorch \d"):
        compile_model(model, cfg=True)
    support = can_compile()
    assert not support.ok
    assert "PyTorch >= 2.0.0" in support.reason


@pytest.mark.parametrize("cfg", [None, False, {"disable": True}])
def test_a_torch_without_compile_runs_what_compiles_nothing(model, monkeypatch, cfg):
    monkeypatch.delattr(torch, "compile", raising=False)
    handle = compile_model(model, cfg)
    assert not handle.enabled
    assert handle.report().graphs == 0
    assert can_compile(cfg).ok


@needs_compile
def test_a_python_that_torch_refuses_is_reported_in_its_words(model, monkeypatch):
    def refuse(*_args, **_keywords):
        raise RuntimeError("Python 3.99+ not yet supported for torch.compile")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(TorchVersionError, match=r"torch says: Python 3\.99\+ not yet supported"):
        compile_model(model, {})
    assert not can_compile().ok
