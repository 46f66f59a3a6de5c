"""Every private name of torch may be missing: mm-runner then does what its table of them says."""

import pytest
import torch
from torch.utils.data import DataLoader

from mm_runner import CheckpointError
from mm_runner import _torch_private as private
from mm_runner._torch_private import stop_workers
from mm_runner.tools import convert_mmengine_checkpoint


@pytest.mark.parametrize("name", ["_legacy_load", "_open_zipfile_reader", "_load"])
def test_without_its_readers_a_conversion_is_refused_in_one_line(tmp_path, monkeypatch, name):
    is_new = name != "_legacy_load"
    path = tmp_path / "old.pth"
    torch.save({"weight": torch.ones(2)}, path, _use_new_zipfile_serialization=is_new)
    monkeypatch.delattr(torch.serialization, name)
    with pytest.raises(CheckpointError, match=rf"torch .* lacks .*{name}.*another version") as told:
        convert_mmengine_checkpoint(path, tmp_path / "new.pth")
    assert len(str(told.value).splitlines()) == 1


def test_without_the_names_of_loaders_their_workers_are_left_to_python():
    loader = DataLoader([1, 2], num_workers=1)
    del loader._iterator
    stop_workers(iter(()), loader)
    assert not hasattr(loader, "_iterator")


class _Bare:
    """Stands in for an object of torch without any private name."""

    def is_inference(self):
        return False


def test_without_what_speeds_up_or_checks_nothing_fails():
    assert private.version_of(_Bare()) == -1
