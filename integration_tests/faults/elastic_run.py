"""A run that machines leave and come back to: ``elastic_run.py WORK_DIR``.

Each rank writes a line per step into ``samples_RANK`` in the work directory: which attempt it is,
and what it has trained on. It takes its time until there is a file ``hurry``.
"""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

import mm_dist
from mm_runner import Runner
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel

NUM_EPOCHS, NUM_SAMPLES, BATCH_SIZE = 2, 6000, 4
# A checkpoint every so many steps, and at most so many seconds in a collective.
INTERVAL, TIMEOUT_S = 10, 5
PACE_S = 0.1


class NumberedPoints(Dataset):
    """Points of three classes, each with its number."""

    def __len__(self):
        return NUM_SAMPLES

    def __getitem__(self, index):
        inputs = torch.full((4,), float(index % 3)) + 0.1 * torch.randn(4)
        return inputs, torch.tensor(index % 3), index


class Classifier(BaseModel):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs, labels, numbers, mode="tensor"):  # noqa: ARG002 - the diary's
        scores = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


class Diary(Hook):
    """Tells of each step before a checkpoint can have it."""

    priority = "HIGH"

    @override
    def before_train(self, runner):
        self.folder = Path(runner.work_dir)
        self.file = (self.folder / f"samples_{runner.rank}").open("a", buffering=1)
        begun = [time.time()]
        mm_dist.broadcast_object_list(begun)
        self.attempt = {"begun": begun[0], "world_size": runner.world_size}

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        numbers = data_batch[2].tolist()
        line = {"step": runner.iter + 1, "epoch": runner.epoch + 1, "samples": numbers}
        self.file.write(f"{json.dumps({**self.attempt, **line})}\n")
        if not (self.folder / "hurry").exists():
            time.sleep(PACE_S)


def main():
    """Train, from wherever the newest checkpoint left off."""
    Runner(
        model={"type": Classifier},
        work_dir=sys.argv[1],
        train_dataloader={
            "dataset": NumberedPoints(),
            "batch_size": BATCH_SIZE,
            "collate_fn": "default_collate",
        },
        train_cfg={"by_epoch": True, "max_epochs": NUM_EPOCHS},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
        default_hooks={
            "checkpoint": {"interval": INTERVAL, "by_epoch": False, "max_keep_ckpts": 2},
            "logger": {"type": "LoggerHook", "interval": 1000},
        },
        custom_hooks=[Diary()],
        env_cfg={"dist_cfg": {"timeout": 30, "steady_timeout": TIMEOUT_S}},
        randomness={"seed": 1},
        resume=True,
    ).train()


if __name__ == "__main__":
    main()
