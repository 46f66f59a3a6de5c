import copy
import logging

import pytest
import torch
from conftest import DTYPES, is_autocast_on, needs_cpu_float16, train_step
from torch import nn

from mm_amp import (
    AmpOptimWrapper,
    ConfigError,
    OptimWrapper,
    TorchVersionError,
    UnsupportedError,
)


def _loop_by_hand(model, optimizer, batches, dtype, max_norm):
    """Train as torch's own examples do, without this package."""
    scaler = torch.amp.GradScaler("cpu") if dtype == "float16" else None
    is_mixed = dtype != "float32"
    autocast_dtype = getattr(torch, dtype) if is_mixed else torch.bfloat16
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=autocast_dtype, enabled=is_mixed):
            output = model(inputs)
            loss = nn.functional.mse_loss(output.float(), targets)
        (scaler.scale(loss) if scaler else loss).backward()
        if scaler and max_norm:
            scaler.unscale_(optimizer)
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        optimizer.zero_grad()


def _wrap(optimizer, dtype, **options):
    if dtype == "float32":
        return OptimWrapper(optimizer, **options)
    return AmpOptimWrapper(optimizer, dtype=dtype, **options)


_FUSED = pytest.param(
    {"fused": True},
    id="fused",
    marks=pytest.mark.skipif(
        not hasattr(torch, "get_autocast_dtype"), reason="fused on the CPU needs torch 2.4"
    ),
)


@pytest.mark.parametrize("dtype", [pytest.param("float32", id="float32"), *DTYPES])
@pytest.mark.parametrize("max_norm", [None, 0.05], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("options", [pytest.param({}, id="plain"), _FUSED])
def test_fifty_steps_equal_a_loop_by_hand(model, batches, dtype, max_norm, options):
    batches = [batches[index % len(batches)] for index in range(50)]
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **options)
    wrapper = _wrap(optimizer, dtype, clip_grad=max_norm and {"max_norm": max_norm})
    results = [train_step(wrapper, model, batch) for batch in batches]
    assert results[-1].stepped  # float16 skips its first few, until the scale fits
    by_hand = torch.optim.Adam(twin.parameters(), lr=0.01, **options)
    _loop_by_hand(twin, by_hand, batches, dtype, max_norm)
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)


@needs_cpu_float16
@pytest.mark.parametrize("options", [pytest.param({}, id="plain"), _FUSED])
@pytest.mark.parametrize("clip_grad", [None, {"max_norm": 1.0}], ids=["unclipped", "clipped"])
def test_overflow_skips_the_step_and_halves_the_scale(model, batches, options, clip_grad):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **options)
    wrapper = AmpOptimWrapper(optimizer, {"init_scale": 1024}, "float16", clip_grad=clip_grad)
    before = copy.deepcopy(model.state_dict())
    inputs, targets = batches[0]
    result = train_step(wrapper, model, (inputs, targets * float("inf")))
    assert isinstance(result.skipped, torch.Tensor) == bool(options)
    assert result.skipped
    assert not result.stepped
    assert result.loss_scale == 1024
    assert clip_grad is None or not result.grad_norm.isfinite()
    assert wrapper.loss_scaler.get_scale() == 512
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)

    result = train_step(wrapper, model, batches[1])
    assert result.stepped
    assert not result.skipped
    assert result.loss_scale == 512
    assert "step" not in vars(optimizer), "the optimizer was left wrapped"


@pytest.mark.skipif(hasattr(torch, "get_autocast_dtype"), reason="this torch can do it")
def test_float16_on_the_cpu_is_refused_at_construction_where_torch_lacks_it(sgd):
    with pytest.raises(TorchVersionError, match=r"float16 autocast.*use dtype='bfloat16'"):
        AmpOptimWrapper(sgd, dtype="float16")


@needs_cpu_float16
def test_accumulating_micro_batch_is_neither_stepped_nor_skipped(model, sgd, batches):
    wrapper = AmpOptimWrapper(sgd, dtype="float16", accumulative_counts=2)
    inputs, targets = batches[0]
    first = train_step(wrapper, model, (inputs, targets * float("inf")))
    assert (first.stepped, first.skipped) == (False, False)
    second = train_step(wrapper, model, batches[1])
    assert (second.stepped, second.skipped) == (False, True)


def test_bfloat16_has_no_scaler_and_never_skips(model, sgd, batches):
    wrapper = AmpOptimWrapper(sgd, dtype="bfloat16")
    inputs, targets = batches[0]
    result = train_step(wrapper, model, (inputs, targets * float("inf")))
    assert wrapper.loss_scaler is None
    assert (result.stepped, result.skipped, result.loss_scale) == (True, False, 1.0)
    assert "loss_scaler" not in wrapper.state_dict()


@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_covers_the_forward_and_not_the_backward(model, sgd, batches, dtype):
    wrapper = AmpOptimWrapper(sgd, dtype=dtype)
    with wrapper.optim_context(model):
        output = model(batches[0][0])
        assert is_autocast_on()
    assert output.dtype == getattr(torch, dtype)
    states = []
    output.register_hook(lambda _: states.append(is_autocast_on()))
    wrapper.update_params(output.float().mean())
    assert states == [False]


@needs_cpu_float16
def test_no_gradient_at_all_warns_once_and_steps_nothing(sgd, caplog):
    wrapper = AmpOptimWrapper(sgd, dtype="float16")
    stray = torch.ones((), requires_grad=True)
    for _ in range(2):
        result = wrapper.update_params(stray * 2)
        assert (result.stepped, result.skipped) == (False, False)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_dtype_defaults_to_what_torch_autocasts_to(sgd):
    wrapper = AmpOptimWrapper(sgd)
    assert (wrapper.device_type, wrapper.dtype) == ("cpu", torch.bfloat16)
    assert AmpOptimWrapper(sgd, dtype="auto").dtype == torch.bfloat16


def test_device_is_looked_at_again_when_the_first_forward_starts(model, sgd, monkeypatch, caplog):
    wrapper = AmpOptimWrapper(sgd, dtype="bfloat16")
    # No accelerator here: pretend that the wrapper was built while the parameters were elsewhere.
    monkeypatch.setattr(wrapper, "device_type", "cuda")
    with caplog.at_level(logging.INFO), wrapper.optim_context(model):
        assert wrapper.device_type == "cpu"
    assert "moved" in caplog.text


def test_meta_parameters_need_a_device_type():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2, device="meta"))], lr=0.1)
    with pytest.raises(ConfigError, match="'meta'; pass device_type"):
        AmpOptimWrapper(optimizer)
    assert AmpOptimWrapper(optimizer, device_type="cpu").dtype == torch.bfloat16


@needs_cpu_float16
def test_float16_parameters_are_refused_where_a_scaler_is_needed(model):
    optimizer = torch.optim.SGD(model.half().parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"parameter 0 of group 0.*\(8, 4\).*model\.float\(\)"):
        AmpOptimWrapper(optimizer, dtype="float16")
    AmpOptimWrapper(optimizer, dtype="bfloat16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float64}, "float64.*use OptimWrapper"),
        ({"dtype": "bf16"}, "there is float16, bfloat16, float32, auto; did you mean 'bfloat16'"),
        ({"dtype": "fp16"}, "did you mean 'float16'"),
        ({"dtype": "half"}, "did you mean 'float16'"),
        ({"loss_scale": "bfloat16"}, "did you mean dtype='bfloat16'"),
        ({"loss_scale": torch.float16}, "did you mean dtype=torch.float16"),
        ({"enabled": "no"}, "enabled is 'no'; it must be True or False"),
        ({"dtype": 16}, "dtype is 16"),
        ({"loss_scale": "static"}, "loss_scale is 'static'"),
        ({"loss_scale": True}, "loss_scale is True"),
        ({"loss_scale": None}, "loss_scale is None"),
        ({"loss_scale": 0}, "loss_scale is 0"),
        ({"loss_scale": float("inf")}, "loss_scale is inf"),
        ({"loss_scale": {"initial_scale": 1.0}}, "no key 'initial_scale'.*'init_scale'"),
        ({"loss_scale": {"growth_factor": 1.0}}, "growth_factor is > 1"),
        ({"loss_scale": {"backoff_factor": 2.0}}, "backoff_factor < 1"),
        ({"loss_scale": {"growth_interval": 0}}, "growth_interval is 0"),
        ({"loss_scale": {"enabled": 1}}, "enabled is 1"),
        ({"device_type": "abacus"}, "abacus"),
    ],
)
def test_wrong_argument_is_named_at_construction(sgd, options, message):
    with pytest.raises(ConfigError, match=message):
        AmpOptimWrapper(sgd, **options)


@needs_cpu_float16
@pytest.mark.parametrize("weight", [None, 3], ids=["plain", "weighted"])
def test_unscale_shows_the_gradients_that_step_takes(model, batches, weight):
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = AmpOptimWrapper(optimizer, 1024.0, "float16", accumulative_counts=2)
    plain = OptimWrapper(torch.optim.SGD(twin.parameters(), lr=0.1), accumulative_counts=2)
    wrapper.step = lambda: wrapper.unscale_() or seen.append(_gradients(model)) or done()
    plain.step = lambda: expected.append(_gradients(twin))
    done, seen, expected = (lambda: type(wrapper).step(wrapper)), [], []
    for inputs, targets in batches[:2]:
        for its_wrapper, its_model in ((wrapper, model), (plain, twin)):
            loss = nn.functional.mse_loss(its_model(inputs), targets)
            its_wrapper.update_params(loss, weight=weight)
        if not seen:
            with pytest.raises(UnsupportedError, match="in the middle of an accumulation window"):
                wrapper.unscale_()
    assert wrapper.last_result.stepped
    torch.testing.assert_close(seen, expected)
    twin.zero_grad()
    for own, start, gradient in zip(model.parameters(), twin.parameters(), seen[0], strict=True):
        torch.testing.assert_close(own, start - 0.1 * gradient)


def _gradients(model):
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{"enabled": False}, {"dtype": "float32"}])
def test_full_precision_is_that_of_the_plain_wrapper(model, batches, options):
    twin = copy.deepcopy(model)
    wrapper = AmpOptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1), **options)
    plain = OptimWrapper(torch.optim.SGD(twin.parameters(), lr=0.1))
    for batch in batches[:3]:
        train_step(wrapper, model, batch)
        train_step(plain, twin, batch)
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert (wrapper.dtype, wrapper.loss_scaler) == (torch.float32, None)
    wrapper.load_state_dict(plain.state_dict())
    assert "loss_scaler" not in wrapper.state_dict()
