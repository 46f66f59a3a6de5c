"""A small run in this process, for faults of the disk: deterministic, and done in half a second."""

import torch
from torch import nn
from torch.utils.data import Dataset

from mm_runner import Runner
from mm_runner.model import BaseModel

EPOCHS, BATCHES = 3, 4


class Points(Dataset):
    """Points of three classes, each time with other noise."""

    def __len__(self):
        return 4 * BATCHES

    def __getitem__(self, index):
        return torch.full((4,), float(index % 3)) + 0.1 * torch.randn(4), torch.tensor(index % 3)


class Classifier(BaseModel):
    """One layer behind a wide one, ``width`` of them."""

    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


def build(work_dir, **changes):
    """Return a Runner that saves after every epoch, and goes on from the newest checkpoint."""
    checkpoint = {"interval": 1, **changes.pop("checkpoint", {})}
    dataset = changes.pop("dataset", None) or Points()
    return Runner(
        **{
            "model": {"type": Classifier, "width": changes.pop("width", 8)},
            "work_dir": work_dir,
            "train_dataloader": {
                "dataset": dataset,
                "batch_size": 4,
                "collate_fn": "default_collate",
                **changes.pop("loader", {}),
            },
            "train_cfg": {"by_epoch": True, "max_epochs": EPOCHS},
            "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
            "default_hooks": {"checkpoint": checkpoint},
            "randomness": {"seed": 3},
            "resume": True,
            **changes,
        }
    )


def weights(runner):
    """Return the parameters of a run, by name."""
    return {name: value.clone() for name, value in runner.model.state_dict().items()}
