"""An error of a dataset names the sample that it comes from."""

import json

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mm_runner.data import failing_sample


class Images(Dataset):
    """One of them cannot be read."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        if index == 17:
            raise ValueError("cut off")
        return torch.full((4,), float(index % 3)), torch.tensor(index % 3)


@pytest.mark.parametrize("num_workers", [0, 1], ids=["in-this-process", "in-a-worker"])
def test_an_unreadable_sample_is_named_in_log_and_crash_bundle(
    make_runner, caplog, capfd, num_workers
):
    loader = {
        "dataset": Images(),
        "batch_size": 4,
        "num_workers": num_workers,
        "collate_fn": "default_collate",
    }
    runner = make_runner(train_dataloader=loader)
    with pytest.raises(ValueError, match="cut off") as raised:
        runner.train()
    assert failing_sample(raised.value) == "sample 17 of Images"
    told = caplog.text + "".join(capfd.readouterr())
    assert "with ValueError while it read sample 17 of Images" in told
    (bundle,) = runner.log_dir.glob("crash/rank0.json")
    assert json.loads(bundle.read_text())["sample"] == "sample 17 of Images"


def _add_up(_):
    raise TypeError("cannot add up")


def test_an_error_that_is_of_no_sample_names_none():
    with pytest.raises(TypeError) as raised:
        next(iter(DataLoader(Images(), batch_size=4, collate_fn=_add_up)))
    assert failing_sample(raised.value) is None
    assert failing_sample(ValueError("of something else")) is None
