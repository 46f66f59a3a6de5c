"""A task whose components say what they take, and whose data must never be read."""

from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.registry import MODELS


class Neck(nn.Module):
    def __init__(self, channels: int, name: str, scale: float = 1.0):
        super().__init__()
        self.layer = nn.Linear(channels, 2)
        self.name, self.scale = name, scale


class Net(BaseModel):
    def __init__(self, width: int, neck: dict, dropout: float = 0.0):
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.neck = MODELS.build(neck)

    def forward(self, inputs, mode="tensor"):  # noqa: ARG002
        raise AssertionError("a step was taken")


class Unreadable(Dataset):
    def __init__(self, size: int, root: str = "data", split: str = "train"):
        self.size, self.root, self.split = size, root, split

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        raise AssertionError("data was read")


class StopAt(Hook):
    def __init__(self, step: int, message: str = ""):
        self.step, self.message = step, message

    @override
    def before_train(self, runner):
        raise AssertionError("training began")


def strict_config():
    """A configuration without any fault."""

    def loader(split, **options):
        return {
            "dataset": {"type": "strict_task:Unreadable", "size": 24, "split": split},
            "batch_size": 4,
            "num_workers": 0,
            "sampler": {"type": "DefaultSampler", "shuffle": split == "train"},
            "collate_fn": "default_collate",
            **options,
        }

    return {
        "model": {
            "type": "strict_task:Net",
            "width": 8,
            "dropout": 0.1,
            "neck": {"type": "strict_task:Neck", "channels": 4, "name": "a", "scale": 0.5},
        },
        "work_dir": "work",
        "train_dataloader": loader("train", drop_last=True, pin_memory=False),
        "val_dataloader": loader("val"),
        "test_dataloader": loader("test", timeout=0),
        "train_cfg": {"by_epoch": True, "max_epochs": 2, "val_interval": 1, "val_begin": 1},
        "val_cfg": {"fp16": False},
        "test_cfg": {"type": "TestLoop"},
        "optim_wrapper": {
            "type": "AmpOptimWrapper",
            "dtype": "bfloat16",
            "accumulative_counts": 2,
            "clip_grad": {"max_norm": 1.0},
            "optimizer": {
                "type": "SGD",
                "lr": 0.1,
                "momentum": 0.9,
                "weight_decay": 0.01,
                "nesterov": False,
            },
        },
        "param_scheduler": [
            {"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "begin": 0, "end": 4},
            {"type": "CosineAnnealingLR", "by_epoch": True, "T_max": 2, "eta_min": 0.001},
        ],
        "val_evaluator": [{"type": "Accuracy", "prefix": "held_out"}],
        "test_evaluator": {"type": "Accuracy", "collect_device": "cpu"},
        "default_hooks": {
            "checkpoint": {"type": "CheckpointHook", "interval": 1, "max_keep_ckpts": 2},
            "logger": {"type": "LoggerHook", "interval": 5},
        },
        "custom_hooks": [{"type": "strict_task:StopAt", "step": 3, "message": "m"}],
        "auto_scale_lr": {"base_batch_size": 8, "enable": True},
        "env_cfg": {"cudnn_benchmark": False, "dist_cfg": {"backend": "gloo", "timeout": 60}},
        "randomness": {"seed": 0, "deterministic": False},
        "log_processor": {"window_size": 10, "num_digits": 4},
        "compile": {"mode": "default", "fullgraph": False},
        "model_wrapper_cfg": {
            "type": "MMDistributedDataParallel",
            "detect_anomalous_params": False,
        },
        "launcher": "none",
        "log_level": "INFO",
        "experiment_name": "strict",
        "resume": False,
    }
