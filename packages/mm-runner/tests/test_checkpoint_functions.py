"""Checkpoints outside of a run: load_checkpoint and save_checkpoint."""

import logging

import pytest
import torch
from torch import nn

from mm_runner import CheckpointError, ConfigError
from mm_runner.checkpoint import load_checkpoint, save_checkpoint


def test_weights_are_loaded_under_revised_names(tmp_path, caplog):
    file = tmp_path / "new" / "file.pth"
    source = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    weights = {f"module.net.{name}": one for name, one in source.state_dict().items()}
    save_checkpoint({"state_dict": weights, "meta": {"epoch": 3}}, file)
    assert [one.name for one in file.parent.iterdir()] == ["file.pth"]
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    keys = [(r"^module\.", ""), ("^net[.]", "")]
    checkpoint = load_checkpoint(model, str(file), "cpu", strict=True, revise_keys=keys)
    assert checkpoint["meta"] == {"epoch": 3}
    assert list(checkpoint["state_dict"]) == list(model.state_dict())
    assert all(map(torch.equal, model.parameters(), source.parameters()))
    assert not caplog.records


def test_what_does_not_fit_is_logged_or_an_error(tmp_path, caplog):
    file = tmp_path / "file.pth"
    save_checkpoint(nn.Linear(2, 3).state_dict(), file)
    model = nn.Linear(2, 3, bias=False)
    load_checkpoint(model, file, logger=logging.getLogger("mine"))
    assert [(one.name, one.levelname) for one in caplog.records] == [("mine", "WARNING")]
    assert "unexpected: bias" in caplog.text
    with pytest.raises(CheckpointError, match="unexpected: bias"):
        load_checkpoint(model, file, strict=True)


def test_code_in_a_file_is_refused_either_way(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint\.hook: .*Linear cannot be saved"):
        save_checkpoint({"hook": nn.Linear(1, 1)}, tmp_path / "file.pth")
    assert not list(tmp_path.iterdir())
    torch.save({"state_dict": nn.Linear(1, 1)}, tmp_path / "file.pth")
    with pytest.raises(CheckpointError, match="besides tensors and primitives"):
        load_checkpoint(nn.Linear(1, 1), tmp_path / "file.pth")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: load_checkpoint(nn.Linear(1, 1), "https://a.b/c.pth"), "filename: .* Download it"),
        (lambda: save_checkpoint({}, "s3://a/b.pth"), "filename: 's3://a/b.pth'"),
    ],
)
def test_other_storage_is_refused(act, message):
    with pytest.raises(ConfigError, match=message):
        act()
