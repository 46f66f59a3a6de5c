import pytest
import torch
from torch import nn

from mm_amp import AmpOptimWrapper, ConfigTypeError, TorchVersionError, amp_receipt, autocast

_HAS_RECEIPT = hasattr(getattr(torch, "compiler", None), "set_stance")
needs_receipt = pytest.mark.skipif(not _HAS_RECEIPT, reason="a receipt needs torch 2.6")
_BF16, _FP32 = torch.bfloat16, torch.float32


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(2, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)

    def forward(self, inputs):
        features = self.stem(inputs).transpose(1, 2)
        return self.linear(self.norm(features * 2.0)) + features


def _step(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    wrapper = AmpOptimWrapper(optimizer, dtype="bfloat16", clip_grad={"max_norm": 1.0}, **options)
    with amp_receipt(model) as receipt:
        with wrapper.optim_context(model):
            loss = nn.functional.mse_loss(model(torch.ones(4, 2, 6)), torch.zeros(4, 6, 8))
        wrapper.update_params(loss)
    return receipt


def _rows(receipt):
    return {row.module_type: row for row in receipt.rows}


@needs_receipt
def test_receipt_counts_the_work_of_each_type_forward_and_backward():
    rows = _rows(_step(Net()))
    linear = 2 * (4 * 6) * 8 * 8
    assert rows["Linear"].num_modules == 1
    assert rows["Linear"].flops == {_BF16: 3 * linear}
    assert rows["Linear"].low_precision_share == 1.0
    # Backward of the weight alone: the inputs of the model need no gradient.
    assert rows["Conv1d"].flops == {_BF16: 2 * (2 * (4 * 6) * (8 * 2 * 3))}
    assert set(rows["LayerNorm"].calls) == {_BF16}
    assert _BF16 in rows["Net"].calls
    # autocast computes this loss in float32; the optimizer and clipping are left out.
    assert set(rows["(outside modules)"].calls) == {_FP32}
    assert set(rows) == {"Conv1d", "Net", "LayerNorm", "Linear", "(outside modules)"}


@needs_receipt
def test_receipt_shows_an_island_and_the_share_of_the_whole():
    receipt = _step(Net(), fp32_modules=["linear"])
    assert set(_rows(receipt)["Linear"].flops) == {_FP32}
    low = receipt.flops[_BF16]
    assert receipt.low_precision_share == low / (low + receipt.flops[_FP32])
    assert 0.1 < receipt.low_precision_share < 0.9
    assert receipt.num_casts > 0
    assert receipt.rows[0].module_type == "Linear"
    assert str(receipt).splitlines()[-1].startswith("all ")


@needs_receipt
def test_receipt_leaves_the_step_as_it_is():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 1))
    inputs = torch.randn(3, 4)
    gradients = []
    for context in (torch.enable_grad(), amp_receipt(model)):
        model.zero_grad()
        with context:
            with autocast("cpu", "bfloat16"):
                loss = model(inputs).sum()
            loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_receipt_needs_a_module_and_torch_2_6():
    with pytest.raises(ConfigTypeError, match="model is a function; a receipt needs"):
        amp_receipt(lambda: None)
    if not _HAS_RECEIPT:
        with pytest.raises(TorchVersionError, match=r"torch 2\.6"):
            amp_receipt(nn.Linear(1, 1))
