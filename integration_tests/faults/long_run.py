"""A run over two hosts that goes on until it is told where to end: ``long_run.py WORK_DIR``.

Each rank writes a line per step into ``steps_RANK`` in the work directory, and the main process
``result`` in the end. ``end_at`` there holds the number of the last step.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner import Runner
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel

# A checkpoint every so many steps, and at most so many seconds in a collective.
INTERVAL, TIMEOUT_S = 10, 5
# How long a step takes at least, in seconds.
PACE_S = float(os.environ.get("PACE_S", "0"))


class Points(Dataset):
    """Points of three classes, each time with other noise."""

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.full((4,), float(index % 3)) + 0.1 * torch.randn(4), torch.tensor(index % 3)


class Classifier(BaseModel):
    """One layer that draws random numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, inputs, labels, mode="tensor"):
        time.sleep(PACE_S)
        scores = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


class Diary(Hook):
    """Tells of each step, and ends the run where it is told to."""

    priority = "LOWEST"

    @override
    def before_train(self, runner):
        self.file = (Path(runner.work_dir) / f"steps_{runner.rank}").open("a", buffering=1)
        self.end = Path(runner.work_dir) / "end_at"

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.file.write(f"{time.time():.3f} {runner.iter + 1} {os.getpid()}\n")
        if self.end.exists() and runner.iter + 1 >= int(self.end.read_text()):
            runner.train_loop.stop_training = True


def main():
    """Train, from wherever the newest checkpoint left off."""
    work_dir = Path(sys.argv[1])
    runner = Runner(
        model={"type": Classifier},
        work_dir=work_dir,
        train_dataloader={
            "dataset": Points(),
            "batch_size": 4,
            "collate_fn": "default_collate",
        },
        train_cfg={"by_epoch": False, "max_iters": 10**6},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.01}, "clip_grad": {"max_norm": 1.0}},
        param_scheduler={"type": "LinearLR", "by_epoch": False, "end": 200},
        default_hooks={
            "checkpoint": {"interval": INTERVAL, "by_epoch": False, "max_keep_ckpts": 2},
            "logger": {"type": "LoggerHook", "interval": 1000},
        },
        custom_hooks=[Diary(), {"type": "ThroughputHook", "interval": 10}],
        env_cfg={"dist_cfg": {"timeout": 30, "steady_timeout": TIMEOUT_S}},
        randomness={"seed": 1},
        resume=True,
    )
    runner.train()
    if runner.rank == 0:
        torch.save(runner.model.module.state_dict(), work_dir / "unfinished")
        (work_dir / "unfinished").rename(work_dir / "result")


if __name__ == "__main__":
    main()
