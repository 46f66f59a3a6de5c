import pytest
import torch
from toy import loader_cfg

from mm_runner.data import DataPosition, DataSettings, TrainBatches, build_dataloader


@pytest.mark.parametrize("num_workers", [0, 1])
def test_whoever_else_draws_from_a_loader_that_began_midway_sees_all_of_it(num_workers):
    settings = DataSettings(0, torch.Generator())
    cfg = loader_cfg(num_workers=num_workers, persistent_workers=False)
    loader = build_dataloader(cfg, settings, shuffle=True, where="train_dataloader")
    batches = TrainBatches(loader, 0, settings.generator, print)
    labels = [batch["labels"].tolist() for batch in batches.begin(0)]
    rest = batches.begin(0, DataPosition(0, batch=4, samples=16, num_batches=6))
    assert [batch["labels"].tolist() for batch in rest] == labels[4:]
    assert [batch["labels"].tolist() for batch in loader] == labels
