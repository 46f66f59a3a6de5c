import inspect
import warnings

import pytest
import torch
from formulas import RULES

import mm_npu
from mm_npu import (
    ConfigError,
    NpuFusedAdamW,
    NpuUnavailableError,
    PortableOptimizerWarning,
)


@pytest.fixture
def params():
    return [torch.nn.Parameter(torch.ones(3))]


def test_on_an_npu_the_name_gives_torch_npus_own_object(put_torch_npu, params):
    put_torch_npu()
    optimizer = NpuFusedAdamW(params, 0.5, (0.8, 0.9), weight_decay=0.1, strict=True)
    assert type(optimizer).__module__ == "torch_npu.optim"
    assert isinstance(optimizer, torch.optim.Optimizer)
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.5, (0.8, 0.9), 0.1)


@pytest.mark.parametrize("name", sorted(RULES))
def test_each_name_leaves_to_torch_npu_what_is_only_ours(put_torch_npu, params, name):
    put_torch_npu()
    ours = getattr(mm_npu, name)
    optimizer = ours(params, lr=0.5, strict=True)
    assert type(optimizer).__module__ == "torch_npu.optim"
    assert type(optimizer).__name__ == name
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_elsewhere_the_name_gives_itself_and_warns_once(params):
    with pytest.warns(PortableOptimizerWarning) as caught:
        optimizer = NpuFusedAdamW(params)
    assert isinstance(optimizer, NpuFusedAdamW)
    assert isinstance(optimizer, torch.optim.Optimizer)
    (warning,) = caught
    assert warning.filename == __file__
    assert "NpuFusedAdamW runs as its portable implementation" in str(warning.message)
    assert "torch.optim.AdamW" in str(warning.message)
    assert "torch_npu is not installed" in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NpuFusedAdamW(params)


@pytest.mark.parametrize("name", sorted(RULES))
@pytest.mark.parametrize("key", ["fused", "foreach", "capturable"])
def test_arguments_of_torchs_own_are_refused_with_those_of_torch_npu(params, name, key):
    ours = getattr(mm_npu, name)
    with pytest.raises(
        ConfigError, match=rf"{name} has no argument {key}; .* takes params, lr, .*"
    ):
        ours(params, lr=0.1, **{key: True})


def test_on_an_npu_arguments_are_those_of_the_torch_npu_that_is_there(
    put_torch_npu, params, monkeypatch
):
    put_torch_npu()
    import torch_npu.optim  # noqa: PLC0415 - the stand-in

    class Native(torch_npu.optim.NpuFusedAdamW):
        def __init__(self, params, lr=0.1, eps=1e-8):
            super().__init__(params, lr=lr, eps=eps)

    monkeypatch.setattr(torch_npu.optim, "NpuFusedAdamW", Native)
    with pytest.raises(
        ConfigError, match=r"no argument fused; that of torch_npu, which .* takes params, lr, eps"
    ):
        NpuFusedAdamW(params, fused=True, strict=True)
    assert type(NpuFusedAdamW(params, eps=1e-3)) is Native


def test_strict_refuses_the_portable_one_with_the_reason(params):
    with pytest.raises(NpuUnavailableError, match=r"strict=True.*torch_npu is not installed"):
        NpuFusedAdamW(params, strict=True)


@pytest.mark.parametrize("value", ["1", "true", "YES", " on "])
def test_the_variable_refuses_the_portable_one(params, monkeypatch, value):
    monkeypatch.setenv("MM_NPU_STRICT", value)
    with pytest.raises(NpuUnavailableError, match="MM_NPU_STRICT=1"):
        NpuFusedAdamW(params)


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
@pytest.mark.parametrize("value", ["0", "false", "No", "off", ""])
def test_the_variable_is_a_real_boolean(params, monkeypatch, value):
    monkeypatch.setenv("MM_NPU_STRICT", value)
    assert isinstance(NpuFusedAdamW(params), NpuFusedAdamW)


def test_a_variable_that_is_no_boolean_is_refused(params, monkeypatch):
    monkeypatch.setenv("MM_NPU_STRICT", "maybe")
    with pytest.raises(ConfigError, match="MM_NPU_STRICT is 'maybe'; it takes 1, true"):
        NpuFusedAdamW(params)
    with pytest.raises(ConfigError, match="strict is 'no'"):
        NpuFusedAdamW(params, strict="no")


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
def test_the_argument_wins_over_the_variable(params, monkeypatch):
    monkeypatch.setenv("MM_NPU_STRICT", "1")
    assert isinstance(NpuFusedAdamW(params, strict=False), NpuFusedAdamW)


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
def test_a_users_subclass_stays_what_it_is_on_an_npu(put_torch_npu, params):
    class Patient(NpuFusedAdamW):
        pass

    put_torch_npu()
    assert type(Patient(params)) is Patient
    with pytest.raises(NpuUnavailableError, match="Patient is a subclass of NpuFusedAdamW"):
        Patient(params, strict=True)


def test_the_signature_is_the_constructors():
    names = list(inspect.signature(NpuFusedAdamW).parameters)
    assert names == ["params", "lr", "betas", "eps", "weight_decay", "amsgrad", "strict"]


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -1.0}, "lr of NpuFusedAdamW is -1.0; it takes a number >= 0"),
        ({"lr": float("nan")}, "lr of NpuFusedAdamW is nan"),
        ({"lr": "0.1"}, "lr of NpuFusedAdamW is '0.1'"),
        ({"eps": -1e-8}, "eps of NpuFusedAdamW"),
        ({"weight_decay": -0.1}, "weight_decay of NpuFusedAdamW"),
        ({"betas": (0.9, 1.0)}, r"betas of NpuFusedAdamW is \(0.9, 1.0\); it takes two numbers"),
        ({"betas": 0.9}, "betas of NpuFusedAdamW is 0.9"),
    ],
)
def test_a_hyper_parameter_out_of_range_is_refused(params, arguments, message):
    with pytest.raises(ConfigError, match=message):
        NpuFusedAdamW(params, **arguments)
    with pytest.raises(ConfigError, match=message):
        NpuFusedAdamW([{"params": params, **arguments}])


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        *((name, {"lr": -1.0}, f"lr of {name} is -1.0; it takes a number >= 0") for name in RULES),
        *((name, {"lr": 0.1, "weight_decay": "x"}, f"weight_decay of {name}") for name in RULES),
        ("NpuFusedAdadelta", {"rho": 1.5}, r"rho of .* is 1.5; it takes a number in \[0, 1\]"),
        ("NpuFusedAdam", {"betas": (0.9,)}, "betas of NpuFusedAdam is .* two numbers"),
        ("NpuFusedAdamP", {"betas": (2, 2)}, "betas of NpuFusedAdamP is .* two numbers"),
        ("NpuFusedAdamP", {"delta": -0.1}, "delta of NpuFusedAdamP"),
        ("NpuFusedBertAdam", {"lr": 0.1, "b1": 1.0}, r"b1 of .*; it takes a number in \[0, 1\)"),
        ("NpuFusedBertAdam", {"lr": 0.1, "warmup": 1.5}, "warmup of NpuFusedBertAdam is 1.5"),
        ("NpuFusedBertAdam", {"lr": 0.1, "schedule": "linear"}, "'linear'; it takes warmup_cosine"),
        ("NpuFusedLamb", {"eps": -1}, "eps of NpuFusedLamb"),
        ("NpuFusedRMSprop", {"alpha": -1}, "alpha of NpuFusedRMSprop"),
        ("NpuFusedRMSpropTF", {"momentum": -1}, "momentum of NpuFusedRMSpropTF"),
        ("NpuFusedSGD", {"lr": 0.1, "nesterov": True}, "it needs a momentum above 0"),
    ],
)
def test_each_refuses_what_is_out_of_range(params, name, arguments, message):
    with pytest.raises(ConfigError, match=message):
        getattr(mm_npu, name)(params, **arguments)
    first = {"lr": 0.1} if "lr" in arguments else {}
    with pytest.raises(ConfigError, match=message):
        getattr(mm_npu, name)([{"params": params, **arguments}], **first)
