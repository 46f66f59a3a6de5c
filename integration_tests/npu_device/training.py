"""Trains a small classifier by config, on whatever this machine has.

Run: ``python training.py OUTCOME OPTIONS``, options as JSON: ``runs``, a list of dicts with the
``optimizer`` and, where they differ, ``wrapper``, ``epochs``, ``dropout``, ``resume``, ``hooks``,
``compile``, ``model_wrapper_cfg``, ``work_dir`` and ``device_type``. ``OUTCOME`` gets what each run
ended with.
"""

import json
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from mm_runner import Runner
from mm_runner.model import BaseModel


class Blobs(Dataset):
    """Points of three classes."""

    def __init__(self, size=48):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(size) % 3
        self.inputs = torch.randn(size, 4, generator=generator)
        self.inputs[torch.arange(size), self.labels] += 3

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Classifier(BaseModel):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3)
        )
        self.devices = set()

    def forward(self, inputs, labels, mode="tensor"):
        self.devices.add(str(inputs.device))
        scores = self.layers(inputs)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def loader(batch_size):
    return {"dataset": Blobs(), "batch_size": batch_size, "collate_fn": "default_collate"}


def calls_of_the_device():
    """List what was asked of the stand-in, by name; nothing where there is none."""
    module = sys.modules.get("torch_npu._calls")
    return [] if module is None else [name for name, *_ in module.RECORDED]


def run(options):
    wrapper = {**options.get("wrapper", {}), "optimizer": options["optimizer"]}
    env = {"device_type": options["device_type"]} if "device_type" in options else {}
    runner = Runner(
        model={"type": Classifier, "dropout": options.get("dropout", 0.0)},
        work_dir=options.get("work_dir", options["optimizer"]["type"]),
        train_dataloader=loader(8),
        train_cfg={"by_epoch": True, "max_epochs": options.get("epochs", 2)},
        optim_wrapper=wrapper,
        val_dataloader=loader(16),
        val_cfg={},
        val_evaluator={"type": "Accuracy"},
        randomness={"seed": 3},
        resume=options.get("resume", False),
        custom_hooks=options.get("hooks"),
        cfg={
            "env_cfg": {"dist_cfg": env},
            "compile": options.get("compile", False),
            "model_wrapper_cfg": options.get("model_wrapper_cfg"),
        },
    )
    runner.train()
    module = getattr(runner.model, "module", runner.model)
    optimizer = runner.optim_wrapper.optimizer
    return {
        "class": f"{type(optimizer).__module__}.{type(optimizer).__name__}",
        "device": str(runner.device),
        "devices": sorted(module.devices),
        "backend": dist.get_backend() if dist.is_initialized() else None,
        "scaler": getattr(runner.optim_wrapper, "loss_scaler", None) is not None,
        "accuracy": runner.val()["accuracy"],
        "calls": calls_of_the_device(),
        "params": {name: p.detach().cpu() for name, p in module.named_parameters()},
    }


def main(outcome, options):
    done = [run(one) for one in json.loads(options)["runs"]]
    if not dist.is_initialized() or dist.get_rank() == 0:
        torch.save(done, outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])
