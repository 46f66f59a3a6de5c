"""Every private name of torch may be missing: mm-runner then does what its table of them says."""

import pytest
import torch
from torch.utils.data import DataLoader, dataloader
from toy import loader_cfg

from mm_runner import CheckpointError
from mm_runner.tools import convert_mmengine_checkpoint


@pytest.mark.parametrize("name", ["_legacy_load", "_open_zipfile_reader", "_load"])
def test_without_its_readers_a_conversion_is_refused_in_one_line(tmp_path, monkeypatch, name):
    torch.save({"weight": torch.ones(2)}, tmp_path / "old.pth")
    monkeypatch.delattr(torch.serialization, name)
    with pytest.raises(CheckpointError, match=rf"torch .* lacks .*{name}.*another version") as told:
        convert_mmengine_checkpoint(tmp_path / "old.pth", tmp_path / "new.pth")
    assert len(str(told.value).splitlines()) == 1


def test_without_the_names_of_loaders_a_run_with_workers_ends(make_runner, monkeypatch):
    shut_down = dataloader._MultiProcessingDataLoaderIter._shutdown_workers
    iterators = []
    monkeypatch.setattr(
        dataloader._MultiProcessingDataLoaderIter, "_shutdown_workers", None, raising=True
    )
    init = dataloader._MultiProcessingDataLoaderIter.__init__

    def noting(iterator, loader):
        init(iterator, loader)
        iterators.append(iterator)

    monkeypatch.setattr(dataloader._MultiProcessingDataLoaderIter, "__init__", noting)
    monkeypatch.setattr(
        dataloader._MultiProcessingDataLoaderIter, "__del__", shut_down, raising=False
    )
    loader = loader_cfg(num_workers=1)
    runner = make_runner(train_dataloader=loader, train_cfg={"by_epoch": True, "max_epochs": 1})
    runner.train()
    assert runner.iter == 6
    assert isinstance(runner.train_dataloader, DataLoader)
    for iterator in iterators:
        shut_down(iterator)
