"""Trains a small model for a few steps, and writes where this process stood and what came out.

    one_script.py WORK_DIR [--seconds-per-step S] [--resume]

It names no launcher: every engine starts it as it is.
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import mm_dist
from mm_runner import Runner
from mm_runner.hooks import Hook
from mm_runner.model import Supervised


class Pace(Hook):
    """Takes its time in each step, and writes how far each process has come."""

    def __init__(self, seconds):
        self._seconds, self.first_step = seconds, 0

    def before_train(self, runner):
        self.first_step = runner.iter

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):  # noqa: ARG002
        report = {"pid": os.getpid(), "step": runner.iter + 1}
        write(Path(runner.work_dir) / f"step_of_{runner.rank}.json", report)
        time.sleep(self._seconds)


def write(file, content):
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content))
    unfinished.replace(file)


def main(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("work_dir", type=Path)
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(arguments)
    pace = Pace(options.seconds_per_step)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(64, 8, generator=generator)
    dataset = TensorDataset(inputs, inputs[:, :4].argmax(dim=1))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    runner = Runner(
        model=Supervised(net, nn.functional.cross_entropy),
        work_dir=str(options.work_dir),
        train_dataloader={"dataset": dataset, "batch_size": 4, "collate_fn": "default_collate"},
        train_cfg={"by_epoch": True, "max_epochs": 3},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
        default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 4, "by_epoch": False}},
        custom_hooks=[pace],
        randomness={"seed": 0},
        resume=options.resume,
        env_cfg={"dist_cfg": {"device_type": "cpu"}},
    )
    runner.train()
    weights = b"".join(value.numpy().tobytes() for value in net.state_dict().values())
    report = {
        "rank": runner.rank,
        "world_size": runner.world_size,
        "local_rank": mm_dist.get_local_rank(),
        "launcher": mm_dist.infer_launcher(),
        "first_step": pace.first_step,
        "steps": runner.iter,
        "weights": hashlib.sha256(weights).hexdigest()[:16],
    }
    write(options.work_dir / f"rank_{runner.rank}.json", report)
    print(json.dumps(report), flush=True)  # noqa: T201 - also for a person who tries it


if __name__ == "__main__":
    main()
