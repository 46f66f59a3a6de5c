"""Train a small classifier with writers for trackers.

``python tracked_run.py WRITERS [fail|stop] [resume]``: the writers as JSON; ``fail`` and ``stop``
end the training in its third epoch, as an error and as a scheduler do.
"""

import json
import os
import signal
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from mm_runner import Runner
from mm_runner.hooks import Hook
from mm_runner.model import Supervised


class Ends(Hook):
    """Logs an image at the start, and ends the training as it is asked to."""

    def before_train(self, runner):
        image = np.zeros((4, 6, 3), dtype=np.uint8)
        image[:, :, 0] = 255
        runner.visualizer.add_image("red", image, step=runner.iter)

    def before_train_epoch(self, runner):
        if runner.epoch == 2 and "fail" in sys.argv:
            raise RuntimeError("as asked for")
        if runner.epoch == 2 and "stop" in sys.argv:
            os.kill(os.getpid(), signal.SIGTERM)


def main():
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    dataset = TensorDataset(inputs, inputs.argmax(dim=1))
    loader = {"dataset": dataset, "batch_size": 5, "collate_fn": "default_collate"}
    runner = Runner(
        model=Supervised(nn.Linear(4, 4), loss=nn.CrossEntropyLoss()),
        work_dir="run",
        train_dataloader=loader,
        train_cfg={"max_epochs": 4},
        val_dataloader=loader,
        val_cfg={},
        val_evaluator=[
            {"type": "Accuracy"},
            {"type": "torchmetrics.classification:MulticlassConfusionMatrix", "num_classes": 4},
        ],
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.125}},
        default_hooks={"logger": {"interval": 2}},
        custom_hooks=[Ends()],
        randomness={"seed": 0},
        resume="resume" in sys.argv,
        cfg={"log_writers": json.loads(sys.argv[1])},
    )
    runner.train()


if __name__ == "__main__":
    main()
