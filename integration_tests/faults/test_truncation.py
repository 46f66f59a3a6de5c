"""A checkpoint that is cut off at any byte is detected, and the one before it is resumed from."""

import os
import random

import pytest
from small_run import BATCHES, build, weights

from mm_runner import CheckpointError
from mm_runner.checkpoint import latest_readable, load_checkpoint_file

pytestmark = pytest.mark.cut

# Every cut is tried with the newest file alone; those with a look for the one before it are few.
NUM_LOOKS = 200


def test_every_prefix_is_detected_and_the_previous_checkpoint_is_found(tmp_path):
    build(tmp_path, log_level="ERROR").train()
    newest = tmp_path / "epoch_3.pth"
    size = newest.stat().st_size
    looks = set(random.Random(0).sample(range(size), NUM_LOOKS))  # noqa: S311 - no secret
    for length in range(size - 1, -1, -1):
        os.truncate(newest, length)
        with pytest.raises(CheckpointError, match=r"epoch_3\.pth is damaged: \S"):
            load_checkpoint_file(newest)
        if length in looks:
            told = []
            path, content = latest_readable(tmp_path, told.append)
            assert (path.name, content["meta"]["iter"]) == ("epoch_2.pth", 2 * BATCHES)
            assert len(told) == 1
            assert "epoch_3.pth is damaged" in told[0]


def test_a_run_goes_on_from_before_the_cut_off_file_and_ends_the_same(tmp_path, caplog):
    whole = build(tmp_path, log_level="ERROR")
    whole.train()
    newest = tmp_path / "epoch_3.pth"
    os.truncate(newest, newest.stat().st_size // 2)
    again = build(tmp_path)
    again.train()
    assert "epoch_3.pth is damaged" in caplog.text or "epoch_3.pth is damaged" in _log(again)
    assert all((value == weights(again)[name]).all() for name, value in weights(whole).items())
    assert load_checkpoint_file(newest)["meta"]["iter"] == 3 * BATCHES


def _log(runner):
    return "".join(path.read_text() for path in runner.log_dir.glob("*.log"))
