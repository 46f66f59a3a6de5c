"""Train from a stream, and perhaps kill all ranks after a step: an argument of torchrun."""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from stream_sources import open_stream
from torch import nn
from typing_extensions import override

import mm_dist
from mm_runner import Runner
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel


class Model(BaseModel):
    """One layer with dropout, on a number."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, numbers, mode="loss"):  # noqa: ARG002 - the Runner gives it
        return {"loss": self.layers(numbers.float()[:, None] / 1000).square().mean()}


class Record(Hook):
    """Appends what each step drew to a file of the rank; kills the process after a step."""

    priority = "LOWEST"

    def __init__(self, folder, kill_at):
        self.folder, self.kill_at = folder, kill_at

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        with (self.folder / f"drawn_{runner.rank}.jsonl").open("a") as file:
            file.write(json.dumps({"step": runner.iter, "drawn": data_batch["numbers"].tolist()}))
            file.write("\n")

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.kill_at:
            runner.save_checkpoint(runner.work_dir, f"iter_{self.kill_at}.pth")
            mm_dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)


def collate(samples):
    return {"numbers": torch.tensor(samples)}


def main():
    parser = argparse.ArgumentParser()
    for name in ("kind", "data", "work_dir"):
        parser.add_argument(name)
    for name in ("size", "workers", "kill_at"):
        parser.add_argument(f"--{name}", type=int, default=0)
    args = parser.parse_args()
    work_dir = Path(args.work_dir)
    work_dir.mkdir(parents=True, exist_ok=True)
    runner = Runner(
        model={"type": Model},  # built once the run is seeded
        work_dir=str(work_dir),
        train_dataloader={
            "dataset": open_stream(args.kind, Path(args.data), args.size, window=4),
            "batch_size": 2,
            "num_workers": args.workers,
            "collate_fn": collate,
        },
        train_cfg={"by_epoch": True, "max_epochs": 2},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.01}},
        custom_hooks=[Record(work_dir, args.kill_at)],
        randomness={"seed": 0},
        resume=True,
    )
    runner.train()


if __name__ == "__main__":
    main()
