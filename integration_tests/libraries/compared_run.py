"""Train a config by one of two Runners, and print its losses: WHICH CONFIG WEIGHTS."""
# ruff: noqa: T201 - what it prints is what is compared

import importlib
import json
import sys

import torch

which, config, weights = sys.argv[1:]  # mmengine or mm_runner
package = importlib.import_module(f"{which}.runner")
Config = importlib.import_module(f"{which}.config").Config
Hook = importlib.import_module(f"{which}.hooks").Hook
losses = []


class Compared(Hook):
    """Begins with given weights, and notes the losses."""

    def before_train(self, runner):
        runner.model.load_state_dict(torch.load(weights, weights_only=True))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):  # noqa: ARG002
        losses.append(float(outputs["loss"]))


cfg = Config.fromfile(config)
cfg.work_dir = f"work_{which}"
runner = package.Runner.from_cfg(cfg)
runner.register_hook(Compared())
runner.train()
print(json.dumps(losses))
