"""Twenty SGD steps on fixed data: the same gradient whatever the number of processes."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from mm_runner.model import BaseModel
from mm_runner.runner import Runner

BATCH_OF_ALL_PROCESSES = 16


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10)
        )

    def forward(self, images, labels, mode="tensor"):
        scores = self.layers(images)
        return {"loss": functional.cross_entropy(scores, labels)} if mode == "loss" else scores


def main(outcome, world_size):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH_OF_ALL_PROCESSES * 20, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (len(images),), generator=generator)
    runner = Runner(
        model=Net(),
        work_dir=f"{outcome}.work_dir",
        train_dataloader={
            "batch_size": BATCH_OF_ALL_PROCESSES // world_size,
            "dataset": TensorDataset(images, labels),
            "collate_fn": "default_collate",
        },
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.05}},
        train_cfg={"by_epoch": True, "max_epochs": 1},
        randomness={"seed": 7},
    )
    assert runner.world_size == world_size
    runner.train()
    assert runner.iter == 20
    torch.save(dict(Net.named_parameters(getattr(runner.model, "module", runner.model))), outcome)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
