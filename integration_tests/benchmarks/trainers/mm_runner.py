"""The Runner of this repository, with its default hooks."""

from torch import nn

from mm_runner.model import BaseModel
from mm_runner.runner import Runner

from .task import LEARNING_RATE, LOG_INTERVAL, build_layer, build_loader


class Classifier(BaseModel):
    def __init__(self, clock):
        super().__init__()
        self.linear = build_layer()
        self._clock = clock

    def forward(self, inputs, labels, mode="loss"):  # noqa: ARG002 (the Runner's signature)
        self._clock.tick()
        return {"loss": nn.functional.cross_entropy(self.linear(inputs), labels)}


def train(num_steps, clock, directory):
    Runner(
        model=Classifier(clock),
        work_dir=directory,
        train_dataloader=build_loader(num_steps),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": LEARNING_RATE, "momentum": 0.9}},
        default_hooks={"logger": {"type": "LoggerHook", "interval": LOG_INTERVAL}},
    ).train()
