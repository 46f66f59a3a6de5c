"""Which scaler of torch is used, and what it can be combined with."""

from types import SimpleNamespace

import pytest
import torch
from conftest import needs_cpu_float16
from torch import nn

from mm_amp import AmpOptimWrapper, ConfigError, TorchVersionError
from mm_amp._loss_scale import LossScale, build_torch_scaler, parse_loss_scale


class _BackendScaler:
    def __init__(self, init_scale=1.0):
        self.init_scale = init_scale


@pytest.fixture
def backend(monkeypatch):
    """A stand-in for an accelerator's module that brings a scaler of its own."""
    module = SimpleNamespace(amp=SimpleNamespace(GradScaler=_BackendScaler))
    monkeypatch.setattr(torch, "abacus", module, raising=False)
    return "abacus"


def test_a_backend_brings_its_own_scaler(backend):
    scaler = build_torch_scaler(LossScale({"init_scale": 2.0}), backend, use_fsdp=False)
    assert (type(scaler), scaler.init_scale) == (_BackendScaler, 2.0)


@needs_cpu_float16
def test_number_dict_and_dynamic_reach_the_scaler(sgd):
    def scale_of(loss_scale):
        return AmpOptimWrapper(sgd, loss_scale, "float16").loss_scaler.get_scale()

    assert scale_of("dynamic") == 65536
    assert scale_of(512) == scale_of(512.0) == scale_of({"init_scale": 512}) == 512


@needs_cpu_float16
def test_disabled_scaler_is_none(model, sgd):
    model.half()  # no scaler, so nothing speaks against it
    assert AmpOptimWrapper(sgd, {"enabled": False}, "float16").loss_scaler is None


@needs_cpu_float16
def test_use_fsdp_builds_the_sharded_scaler(sgd):
    wrapper = AmpOptimWrapper(sgd, {"process_group": None}, "float16", use_fsdp=True)
    assert type(wrapper.loss_scaler).__name__ == "ShardedGradScaler"


def test_dict_is_copied():
    options = {"init_scale": 8}
    parsed = parse_loss_scale(options, use_fsdp=False)
    assert parsed.options == {"init_scale": 8.0}
    assert parsed.options is not options


def test_a_torch_without_scaler_names_the_remedy(monkeypatch):
    monkeypatch.delattr(torch.amp, "GradScaler", raising=False)
    with pytest.raises(TorchVersionError, match="use dtype='bfloat16'"):
        build_torch_scaler(LossScale({}), "mps", use_fsdp=False)


class _OldFusedSGD(torch.optim.SGD):
    """As fused optimizers were in torch 1.13: given the scaler, they unscale by themselves."""

    _step_supports_amp_scaling = True

    def step(self, closure=None, *, grad_scaler=None):
        del grad_scaler
        return super().step(closure)


@needs_cpu_float16
def test_clipping_is_refused_where_the_optimizer_would_unscale_again():
    optimizer = _OldFusedSGD(nn.Linear(2, 2).parameters(), lr=0.1)
    AmpOptimWrapper(optimizer, dtype="float16")
    with pytest.raises(TorchVersionError, match="fused _OldFusedSGD"):
        AmpOptimWrapper(optimizer, dtype="float16", clip_grad={"max_norm": 1.0})


@pytest.mark.parametrize("slip", ["dyn", "Dynamic", "dynamc"])
def test_slip_of_dynamic_is_recognized(slip):
    with pytest.raises(ConfigError, match=f"loss_scale is '{slip}'.*; did you mean 'dynamic'"):
        parse_loss_scale(slip, use_fsdp=False)
    with pytest.raises(ConfigError, match=r"init_scale=1024\.0\)\.$"):
        parse_loss_scale("static", use_fsdp=False)
