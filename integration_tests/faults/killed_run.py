"""Kills a training run again and again, at random moments, until it has come to its end.

Each attempt is a process of its own, forked from this one, which has imported everything and does
nothing itself; so an attempt takes as long as its training. It saves after every step, so that many
of the kills fall into saving; and half of them wait for one.

Run by itself: ``python killed_run.py [--kills 200] [--seed 0]``.
"""

# ruff: noqa: S311, T201 (no secret; no cleaning up in a forked child; a program)

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from mm_runner import Runner
from mm_runner.model import BaseModel

_EPOCHS, _BATCHES = 4, 8
# Part of the attempts that write by a thread.
_IN_BACKGROUND = 0.5
# Part of the kills that wait for a save.
_IN_SAVE = 0.5
# How the time to a kill follows the speed of the machine: a run is killed a few times before it
# comes to its end.
_LONGER, _SHORTER = 1.1, 0.7
_FAILED = 3


class Points(Dataset):
    """Points of three classes, each time with other noise."""

    def __init__(self) -> None:
        self.labels = torch.arange(4 * _BATCHES) % 3
        self.inputs = torch.randn(len(self.labels), 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index] + 0.1 * torch.randn(4), self.labels[index]


class Classifier(BaseModel):
    """Large enough that writing it takes a while."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 1024), nn.Linear(1024, 3)
        )

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> object:
        scores = self.layers(inputs)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def train(work_dir: Path, *, in_background: bool) -> dict[str, torch.Tensor]:
    """Go on from the newest checkpoint to the end, and return the parameters."""
    loader = {"dataset": Points(), "batch_size": 4, "collate_fn": "default_collate"}
    Runner(
        model={"type": Classifier},
        work_dir=work_dir,
        train_dataloader={**loader, "sampler": {"type": "DefaultSampler", "shuffle": True}},
        train_cfg={"by_epoch": True, "max_epochs": _EPOCHS},
        optim_wrapper={
            "optimizer": {"type": "AdamW", "lr": 0.01},
            "accumulative_counts": 2,
            "clip_grad": {"max_norm": 1.0},
        },
        param_scheduler={"type": "CosineAnnealingLR", "by_epoch": False},
        val_dataloader=loader,
        val_cfg={},
        val_evaluator={"type": "Accuracy"},
        default_hooks={
            "checkpoint": {
                "by_epoch": False,
                "interval": 1,
                "max_keep_ckpts": 2,
                "save_best": "accuracy",
                "async_save": in_background,
            }
        },
        custom_hooks=[{"type": "EMAHook"}],
        randomness={"seed": 7},
        resume=True,
        log_level="ERROR",
    ).train()
    newest = work_dir / (work_dir / "last_checkpoint").read_text().strip()
    return dict(torch.load(newest, weights_only=True)["state_dict"])


def attempt(
    work_dir: Path, *, in_background: bool, kill_after_s: float | None, in_save: bool = False
) -> bool:
    """Train in a process of its own, and kill it after a while; tell whether it came to the end.

    Args:
        work_dir: Of the run.
        in_background: Whether a thread writes the checkpoints.
        kill_after_s: After so long; ``None`` lets it come to its end.
        in_save: Kill it during the first save after that.

    Raises:
        RuntimeError: If it ended in any other way.
    """
    child = os.fork()
    if child == 0:
        try:
            result = train(work_dir, in_background=in_background)
            torch.save(result, work_dir / "result")
        except BaseException:  # noqa: BLE001 - shown, and told to the parent
            sys.excepthook(*sys.exc_info())
            os._exit(_FAILED)
        os._exit(0)
    if kill_after_s is not None:
        time.sleep(kill_after_s)  # the moment of the kill: nothing is waited for
        if in_save:
            _wait_for_save(work_dir, kill_after_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"An attempt to go on ended with status {status}.")
    return status == 0


def _wait_for_save(work_dir: Path, at_most_s: float) -> None:
    end = time.monotonic() + at_most_s
    while time.monotonic() < end:
        if any(work_dir.glob(".iter_*.unfinished")):
            return


def kill_until_done(directory: Path, num_kills: int, seed: int) -> tuple[int, int]:
    """Kill runs ``num_kills`` times, and compare the parameters of each that comes to its end.

    Args:
        directory: Empty; for the runs.
        num_kills: How often to kill.
        seed: Of the moments.

    Returns:
        How many runs came to their end, and how many unfinished files were left lying about.

    Raises:
        RuntimeError: If a run cannot go on, or differs from the one that was never killed.
    """
    moments = random.Random(seed)
    torch.set_num_threads(1)
    begin = time.monotonic()
    attempt(directory / "whole", in_background=False, kill_after_s=None)
    longest = 0.6 * (time.monotonic() - begin)
    whole = torch.load(directory / "whole" / "result", weights_only=True)
    done, killed, left = 0, 0, 0
    while killed < num_kills:
        work_dir = directory / f"run_{done}"
        while True:
            in_background = moments.random() < _IN_BACKGROUND
            # The last one of all is let come to its end.
            delay = moments.uniform(0.0, longest) if killed < num_kills else None
            if attempt(
                work_dir,
                in_background=in_background,
                kill_after_s=delay,
                in_save=moments.random() < _IN_SAVE,
            ):
                break
            killed += 1
            longest *= _LONGER
            left += len(list(work_dir.glob(".*.unfinished")))
        result = torch.load(work_dir / "result", weights_only=True)
        for name, value in whole.items():
            if not torch.equal(result[name], value):
                raise RuntimeError(f"{work_dir}: {name} differs from the run never killed.")
        if list(work_dir.glob(".*.unfinished")) or len(list(work_dir.glob("iter_*.pth"))) > 2:
            raise RuntimeError(f"{work_dir}: files of killed attempts were not removed.")
        done += 1
        longest *= _SHORTER
    return done, left


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done, left = kill_until_done(Path(folder), options.kills, options.seed)
    print(
        f"{options.kills} kills, {left} of them while a file was being written; {done} runs came "
        f"to their end, all bit-equal; {time.monotonic() - begin:.0f} s"
    )


if __name__ == "__main__":
    main()
