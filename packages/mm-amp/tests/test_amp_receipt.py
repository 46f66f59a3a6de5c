import pytest
import torch
from conftest import is_autocast_on
from torch import nn
from torch.utils.checkpoint import checkpoint

import mm_amp._work
from mm_amp import (
    AmpOptimWrapper,
    AmpReceipt,
    ConfigTypeError,
    TorchVersionError,
    add_fp32_islands,
    amp_receipt,
    autocast,
)

needs_torch_two = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="a receipt needs torch 2.0"
)
pytestmark = needs_torch_two
_BF16, _FP32 = torch.bfloat16, torch.float32


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, features, *, scale):
        doubled = features * scale  # before its children run: its own all the same
        return features + self.linear(self.norm(doubled))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 8, 3, padding=1)
        self.residual = Residual()
        self.head = nn.GRUCell(8, 1)

    def forward(self, inputs):
        features = self.stem(inputs).transpose(1, 2)
        features = self.residual(features, scale=2.0)
        return self.head(features.flatten(0, 1))


def _step(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wrapper = AmpOptimWrapper(optimizer, dtype="bfloat16", clip_grad={"max_norm": 1.0}, **options)
    with amp_receipt(model) as receipt:
        with wrapper.optim_context(model):
            output = model(torch.ones(4, 2, 6))
            loss = nn.functional.mse_loss(output, torch.zeros(24, 1))
        wrapper.update_params(loss)
    return receipt


def _rows(receipt):
    return {row.module_type: row for row in receipt.rows}


def test_receipt_tells_what_each_type_computed_in():
    rows = _rows(_step(Net()))
    linear_flops = 2 * (4 * 6) * 8 * 8
    linear = rows["Linear"]
    assert linear.num_modules == 1
    assert linear.forward_flops == {_BF16: linear_flops}
    # The gradients of inputs and weight, and the bias's sum over 24 positions.
    assert linear.backward_flops == {_BF16: 2 * linear_flops + 8}
    assert linear.flops == {_BF16: 3 * linear_flops + 8}
    assert linear.low_precision_share == 1.0
    # The weight's alone: the inputs of the model need no gradient.
    convolution = 2 * (4 * 6) * (8 * 2 * 3)
    assert rows["Conv1d"].forward_flops == {_BF16: convolution}
    assert rows["Conv1d"].backward_flops == {_BF16: convolution}
    assert set(rows["LayerNorm"].forward_flops) == {_BF16}
    assert rows["Residual"].forward_flops == {_BF16: 2 * (4 * 6 * 8)}
    assert rows["Residual"].backward_flops == {_BF16: 4 * 6 * 8}
    # autocast computes this loss in float32; the optimizer and clipping are left out.
    assert rows["(outside modules)"].forward_flops == {_FP32: 1}
    assert set(rows) == {
        "Conv1d", "Residual", "LayerNorm", "Linear", "GRUCell", "(outside modules)",
    }  # fmt: skip


def test_receipt_shows_an_island_and_the_share_of_the_whole():
    receipt = _step(Net(), fp32_modules=["residual.linear"])
    linear = _rows(receipt)["Linear"]
    assert set(linear.flops) == {_FP32}
    assert linear.low_precision_share == 0.0
    low = receipt.flops[_BF16]
    assert receipt.low_precision_share == low / (low + receipt.flops[_FP32])
    assert 0.1 < receipt.low_precision_share < 0.9
    assert receipt.num_casts > 0
    assert isinstance(receipt, AmpReceipt)
    assert [sum(row.flops.values()) for row in receipt.rows] == sorted(
        (sum(row.flops.values()) for row in receipt.rows), reverse=True
    )


def test_receipt_prints_as_a_table():
    model = nn.Sequential(nn.Linear(100, 100), nn.Softmax(dim=1), nn.Identity())
    add_fp32_islands(model, "1")
    with amp_receipt(model) as receipt, autocast("cpu", "bfloat16"):
        model(torch.ones(50, 100))
    assert str(receipt).splitlines() == [
        "module type  count  dtypes that ran (operations)  MFLOPs  low precision",
        "Linear           1  bfloat16 1                     1.000         100.0%",
        "Softmax          1  float32 1                      0.005           0.0%",
        "all                 4 casts                        1.005          99.5%",
    ]


def test_receipt_without_work_says_so():
    with amp_receipt(nn.Linear(2, 2)) as receipt:
        pass
    assert receipt.rows == ()
    assert receipt.low_precision_share == 0.0
    assert str(receipt).splitlines()[-1].split() == ["all", "0", "casts", "0.000", "-"]


def test_receipt_leaves_the_step_as_it_is():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    inputs = torch.randn(3, 4)
    gradients = []
    for context in (torch.enable_grad(), amp_receipt(model), torch.enable_grad()):
        model.zero_grad()
        with context:
            with autocast("cpu", "bfloat16"):
                loss = model(inputs).sum()
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    for first, second, third in zip(*gradients, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_receipt_ends_with_an_error_in_the_model():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3))
    with pytest.raises(RuntimeError), amp_receipt(model):
        model(torch.ones(1, 2))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not is_autocast_on()


class _Retrying(nn.Module):
    def __init__(self):
        super().__init__()
        self.wrong, self.right = nn.Linear(3, 3), nn.Linear(2, 2)

    def forward(self, inputs):
        try:
            return self.wrong(inputs)
        except RuntimeError:
            return self.right(inputs) * 2


@pytest.mark.skipif(not hasattr(nn.Module, "compile"), reason="torch 2.0 does not tell of it")
def test_forward_that_raised_and_was_caught_does_not_keep_the_place():
    model = nn.Sequential(_Retrying(), nn.Tanh())
    with amp_receipt(model) as receipt:
        model(torch.ones(1, 2))
    rows = _rows(receipt)
    assert rows["Tanh"].forward_flops == {_FP32: 2}
    assert rows["Linear"].num_modules == 1


class _Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def forward(self, inputs):
        return checkpoint(self.layers, inputs, use_reentrant=False)


def test_forward_that_runs_again_in_backward_counts_as_forward():
    model = _Checkpointed()
    with amp_receipt(model) as receipt:
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    linear = _rows(receipt)["Linear"]
    once = 2 * (2 * 4 * 4)
    # All but the first version of this checkpointing stop before the last layer.
    assert linear.forward_flops[_FP32] in (3 * once, 4 * once)
    assert linear.backward_flops[_FP32] > 4 * once


_MODELS = {
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "strided": (lambda: nn.Conv2d(4, 8, 3, stride=2), (2, 4, 7, 7)),
    "linear": (lambda: nn.Linear(4, 6), (2, 3, 4)),
}


@pytest.mark.skipif(not hasattr(torch, "get_autocast_dtype"), reason="torch counts since 2.1")
@pytest.mark.parametrize("name", list(_MODELS))
def test_products_are_counted_as_torch_counts_them(name, monkeypatch):
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - not in all versions

    build, shape = _MODELS[name]
    model = build()
    inputs = torch.randn(shape, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter:
        model(inputs).sum().backward()
    # torch counts what has no formula as nothing.
    monkeypatch.setattr(mm_amp._work, "_per_element", lambda _outputs: 0)
    with amp_receipt(model) as receipt:
        model(inputs).sum().backward()
    assert receipt.flops[_FP32] == counter.get_total_flops()


def test_grouped_convolution_is_counted_by_its_groups():
    model = nn.Conv2d(4, 8, 3, groups=2, padding=1, bias=False)
    with amp_receipt(model) as receipt:
        model(torch.randn(2, 4, 5, 5, requires_grad=True)).sum().backward()
    convolution = 2 * (2 * 25) * (8 * 2 * 9)
    row = _rows(receipt)["Conv2d"]
    assert row.forward_flops == {_FP32: convolution}
    assert row.backward_flops == {_FP32: 2 * convolution}


@pytest.mark.skipif(not hasattr(torch, "get_autocast_dtype"), reason="composed of others before")
def test_attention_kernel_is_counted():
    query, key = (torch.randn(2, 3, n, 4, requires_grad=True) for n in (5, 7))
    with amp_receipt(nn.Identity()) as receipt:
        output = nn.functional.scaled_dot_product_attention(query, key, key)
        output.sum().backward()
    scores = 2 * (2 * 3) * 5 * 7
    row = _rows(receipt)["(outside modules)"]
    assert row.forward_flops[_FP32] == scores * (4 + 4) + 1
    assert row.backward_flops[_FP32] == scores * (3 * 4 + 2 * 4) + 2 * 3 * 7 * 4


def test_recurrent_layer_is_counted_by_its_matrices():
    model = nn.LSTM(4, 5)
    with amp_receipt(model) as receipt, torch.no_grad():
        model(torch.ones(3, 2, 4))
    matrices = 4 * 5 * 4 + 4 * 5 * 5
    counted = _rows(receipt)["LSTM"].forward_flops[_FP32]
    # Exact where one kernel does it all; else there are the cells' activations besides.
    assert 2 * (3 * 2) * matrices <= counted < 1.3 * 2 * (3 * 2) * matrices


@pytest.mark.filterwarnings("ignore")  # old compilers warn of much, about themselves
def test_receipt_of_a_compiled_model():
    pytest.importorskip("torch._dynamo").reset()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compiled = torch.compile(model, backend="aot_eager")
    if not hasattr(getattr(torch, "compiler", None), "set_stance"):
        with pytest.raises(TorchVersionError, match=r"torch 2\.6"):
            amp_receipt(compiled)
        return
    compiled(torch.ones(2, 4))
    with amp_receipt(compiled) as receipt, autocast("cpu", "bfloat16"):
        compiled(torch.ones(2, 4)).sum().backward()
    assert set(_rows(receipt)["Linear"].flops) == {_BF16}
    assert "Tanh" in _rows(receipt)
    torch._dynamo.reset()


def test_receipt_needs_a_module():
    with pytest.raises(ConfigTypeError, match="model is a function; a receipt needs"):
        amp_receipt(lambda: None)
