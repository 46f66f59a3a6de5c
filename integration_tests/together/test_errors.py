"""What a newcomer sees who gets something wrong: one message that says what to do."""

import pytest
import torch
from torch.utils.data import TensorDataset

from mm_runner import Runner

MISTAKES = {
    "unknown-optimizer": (
        {"optim_wrapper": {"optimizer": {"type": "SDG", "lr": 0.1}}},
        ["No optimizer named 'SDG'", "Did you mean 'SGD'?", "NpuFusedAdamW"],
    ),
    "unknown-wrapper": (
        {"optim_wrapper": {"type": "AmpWrapper", "optimizer": {"type": "SGD", "lr": 0.1}}},
        ["No optim wrapper named 'AmpWrapper'", "AmpOptimWrapper"],
    ),
    "no-launcher": (
        {"launcher": "pytorch"},
        ["launcher", "RANK", "torchrun --nproc_per_node"],
    ),
    "unknown-compile-option": (
        {"cfg": {"compile": {"backand": "inductor"}}},
        ["backand", "backend"],
    ),
}


@pytest.mark.parametrize(("change", "parts"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_ends_in_a_message(change, parts, tmp_path):
    arguments = {
        "model": torch.nn.Linear(2, 1),
        "work_dir": tmp_path,
        "train_dataloader": {"batch_size": 2, "dataset": TensorDataset(torch.ones(4, 2))},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.001}},
        "train_cfg": {"by_epoch": True, "max_epochs": 1},
        **change,
    }
    with pytest.raises(Exception) as raised:  # noqa: PT011 - what it says is what counts
        Runner(**arguments).train()
    message = str(raised.value)
    assert "\n" not in message
    for part in parts:
        assert part in message
