"""A run that goes on until it is told to leave: ``preempted_run.py WORK_DIR [MAX_EPOCHS]``.

Each rank writes ``ready_RANK`` into the work directory once it trains, and ``status_RANK`` when it
leaves.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner import Runner
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel


class Points(Dataset):
    """Points of three classes."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((4,), float(index % 3)), torch.tensor(index % 3)


class Classifier(BaseModel):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> object:
        scores = self.layer(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


class SayReady(Hook):
    """Says when training is under way."""

    @override
    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: object = None, outputs: object = None
    ) -> None:
        """Write the file."""
        if batch_idx == 2:
            (Path(runner.work_dir) / f"ready_{runner.rank}").touch()


if __name__ == "__main__":
    work_dir = Path(sys.argv[1])
    runner = Runner(
        model={"type": Classifier},
        work_dir=work_dir,
        train_dataloader={
            "dataset": Points(),
            "batch_size": 4,
            "num_workers": 1,
            "collate_fn": "default_collate",
        },
        train_cfg={"by_epoch": True, "max_epochs": int(sys.argv[2]) if sys.argv[2:] else 100000},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        default_hooks={"checkpoint": {"interval": -1}, "logger": None},
        custom_hooks=[SayReady()],
        randomness={"seed": 0},
        resume=True,
    )
    try:
        runner.train()
    except RunStopped as stop:
        (work_dir / f"status_{runner.rank}").write_text(f"{stop.code} {runner.iter}")
        raise
