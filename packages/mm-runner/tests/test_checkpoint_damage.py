"""What is said of a file that is no whole checkpoint."""

import os
import pickle
import re
import warnings

import pytest
import torch

from mm_runner.checkpoint import (
    LAST_CHECKPOINT,
    latest_readable,
    load_checkpoint_file,
    save_checkpoint_file,
)
from mm_runner.errors import CheckpointError

CONTENT = {"state_dict": {"a": torch.arange(600.0)}, "meta": {"epoch": 1}}


class Command:
    def __reduce__(self):
        return os.system, ("echo executed",)


def message_of(path):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint_file(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty."),
        (b"<html>", "it is no checkpoint, and begins with b'<html>'."),
        (b"\xc8\xc9\xca", "it is no checkpoint, and begins with b'\\xc8\\xc9\\xca'."),
    ],
    ids=["empty", "text", "bytes"],
)
def test_what_the_first_bytes_tell_is_said(tmp_path, content, reason):
    path = tmp_path / "epoch_1.pth"
    path.write_bytes(content)
    # Without what the loader missed in it, which differs from version to version.
    assert message_of(path) == f"{path} is damaged: {reason}"


@pytest.mark.parametrize("size", [3, 50, 1200, -1])
def test_a_file_that_is_cut_off_says_so_with_its_size_and_the_loaders_reason(tmp_path, size):
    path = tmp_path / "epoch_1.pth"
    save_checkpoint_file(CONTENT, path)
    path.write_bytes(path.read_bytes()[:size])
    message = message_of(path)
    assert f"is damaged: it is cut off: {path.stat().st_size:,} bytes, no end of its" in message
    # Not torch's paragraph about what may have happened.
    assert re.search(r"archive( \([^.]*\))?\.$", message)


def test_a_file_in_torchs_old_form_that_is_cut_off_says_so(tmp_path):
    path = tmp_path / "epoch_1.pth"
    torch.save(CONTENT, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:-1])
    assert "is damaged: it is cut off" in message_of(path)


@pytest.mark.parametrize("protocol", [2, 4])
def test_another_programs_pickle_is_refused_without_torchs_own_warning(tmp_path, protocol, capfd):
    path = tmp_path / "epoch_1.pth"
    path.write_bytes(pickle.dumps(Command(), protocol))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        message = message_of(path)
    assert [one for one in caught if "pickle protocol" in str(one.message)] == []
    assert capfd.readouterr().out == ""
    assert "weights_only" not in message


@pytest.mark.parametrize("marker", [b"\n", bytes(12)], ids=["blank", "zeros"])
def test_an_empty_marker_is_called_empty_and_the_newest_file_is_taken(tmp_path, marker):
    save_checkpoint_file(CONTENT, tmp_path / "epoch_3.pth")
    (tmp_path / LAST_CHECKPOINT).write_bytes(marker)
    told = []
    path, _ = latest_readable(tmp_path, told.append)
    assert path.name == "epoch_3.pth"
    assert told == [f"{tmp_path / LAST_CHECKPOINT} names no checkpoint."]


def test_an_empty_marker_alone_does_not_begin_training_anew(tmp_path):
    (tmp_path / LAST_CHECKPOINT).touch()
    with pytest.raises(CheckpointError, match="names no checkpoint, and none lies beside it"):
        latest_readable(tmp_path, [].append)


def test_a_float_in_torchs_old_form_is_read(tmp_path):
    path = tmp_path / "epoch_1.pth"
    content = {"meta": {"lr": 0.1}, "state_dict": {"a": torch.arange(3.0)}}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    loaded = load_checkpoint_file(path)
    assert loaded["meta"] == content["meta"]
    assert torch.equal(loaded["state_dict"]["a"], content["state_dict"]["a"])
    torch.save({**content, "b": Command()}, path, _use_new_zipfile_serialization=False)
    assert "It is refused" in message_of(path)
