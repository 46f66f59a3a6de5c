"""The Runner of this repository, with its default hooks but no checkpoints, as for the others."""

from __future__ import annotations

from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.runner import Runner

from .task import LEARNING_RATE, LOG_INTERVAL, build_loader, build_model


class Trained(BaseModel):
    def __init__(self, task):
        super().__init__()
        self.module = build_model(task)

    def forward(self, inputs, labels, mode="loss"):  # noqa: ARG002 (the Runner's signature)
        return {"loss": self.module(inputs, labels)}


class ClockHook(Hook):
    priority = "LOWEST"

    def __init__(self, clock):
        self._clock, self.outputs = clock, None

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):  # noqa: ARG002
        self.outputs = outputs
        self._clock.tick()


def train(task, clock, directory):
    optim_wrapper = {"optimizer": {"type": "AdamW", "lr": LEARNING_RATE, "fused": True}}
    if task.is_mixed:
        optim_wrapper |= {"type": "AmpOptimWrapper", "dtype": task.precision}
    cfg = {}
    if task.compiled:
        cfg["compile"] = {"regions": "auto"} if task.compiled == "regions" else True
    if task.device == "cpu":
        cfg["env_cfg"] = {"dist_cfg": {"device_type": "cpu"}}
    hook = ClockHook(clock)
    Runner.from_cfg(
        {
            "model": Trained(task),
            "work_dir": str(directory),
            "train_dataloader": build_loader(task),
            "train_cfg": {"by_epoch": True, "max_epochs": 1},
            "optim_wrapper": optim_wrapper,
            "default_hooks": {
                "logger": {"type": "LoggerHook", "interval": LOG_INTERVAL},
                "checkpoint": None,
            },
            "custom_hooks": [hook],
            **cfg,
        }
    ).train()
    return float(hook.outputs["loss"])
