"""Epochs of ten AdamW steps of a sharded model, or of the same in one process, with clipping."""

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
        self.layers = nn.Sequential(nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 10))

    def forward(self, images, labels, mode="tensor"):
        scores = self.layers(images)
        return {"loss": functional.cross_entropy(scores, labels)} if mode == "loss" else scores


def main(work_dir, world_size, num_epochs, load_from=None):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(BATCH_OF_ALL_PROCESSES * 10, 64, generator=generator)
    labels = torch.randint(10, (len(images),), generator=generator)
    runner = Runner(
        model=Net(),
        work_dir=work_dir,
        train_dataloader={
            "batch_size": BATCH_OF_ALL_PROCESSES // world_size,
            "dataset": TensorDataset(images, labels),
            "collate_fn": "default_collate",
        },
        optim_wrapper={
            "optimizer": {"type": "AdamW", "lr": 0.01},
            "clip_grad": {"max_norm": 0.1},
        },
        train_cfg={"by_epoch": True, "max_epochs": num_epochs},
        load_from=load_from,
        resume=load_from is not None,
        randomness={"seed": 7},
        cfg={
            "model_wrapper_cfg": {
                "type": "MMFullyShardedDataParallel",
                "auto_wrap_policy": ["Linear"],
            }
        },
    )
    model = runner.train()
    assert runner.iter == 10 * num_epochs
    if world_size > 1:
        assert len(model.module.layers[0].weight.to_local()) < 33


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
