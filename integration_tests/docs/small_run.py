"""The run whose further arguments a page shows, as in ``Runner(..., cfg=dict(compile=True))``."""

import warnings

import torch
from torch import nn

import mm_runner
from mm_runner.model import BaseModel

# Inductor's own, and where there is no NPU.
warnings.filterwarnings("ignore", "`torch.jit.script_method` is deprecated")
warnings.filterwarnings("ignore", "NpuFusedAdamW runs as its portable implementation")


class Model(BaseModel):
    """A model with a backbone, a neck and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.neck, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs, labels, mode):  # noqa: ARG002 (the Runner's signature)
        scores = self.head(self.neck(self.backbone.layers(inputs)))
        return {"loss": nn.functional.cross_entropy(scores.float(), labels)}


def Runner(_, **more):  # noqa: N802 (it stands for the class)
    arguments = {
        "model": Model(),
        "work_dir": "work_dir",
        "train_dataloader": {
            "dataset": [(torch.ones(4), 1)] * 4,
            "batch_size": 2,
            "collate_fn": "default_collate",
        },
        "train_cfg": {"max_epochs": 1},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.1}},
    }
    return mm_runner.Runner(**{**arguments, **more})
