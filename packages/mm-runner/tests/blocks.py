"""A model of blocks with what a repeated forward could get wrong, importable by spawned ranks."""

import pickle

import torch
from torch import nn

from mm_runner.model import BaseModel


class Counting(nn.Module):
    """Scales by a buffer that it changes first, as a spectral norm does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, inputs):
        if self.training:
            self.scale.mul_(1.5)
        return inputs * self.scale.clone()


class Block(nn.Module):
    """Convolution, batch normalization, dropout, and a scale by keyword."""

    def __init__(self, width=4, dropout=0.5):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, inputs, *, scale=1.0):
        hidden = self.dropout(torch.relu(self.norm(self.conv(inputs))))
        return inputs + scale * self.out(hidden)


class Net(BaseModel):
    """Three blocks between a stem and a head, over inputs of shape ``(batch, 4)``."""

    def __init__(self, dropout=0.5, last=None):
        super().__init__()
        self.stem = nn.Conv1d(1, 4, 1)
        self.blocks = nn.ModuleList([Block(dropout=dropout) for _ in range(3)])
        self.last = last() if last is not None else nn.Identity()
        self.head = nn.Linear(16, 3)

    def forward(self, inputs, labels, mode="tensor"):
        hidden = self.stem(inputs[:, None])
        for block in self.blocks:
            hidden = block(hidden, scale=torch.tensor(0.5))
        scores = self.head(self.last(hidden).flatten(1))
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


class Dropless(Net):
    """Gives the same in every process."""

    def __init__(self):
        super().__init__(dropout=0.0)


def batch(size=6):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(size, 4, generator=generator)
    return {"inputs": inputs, "labels": torch.arange(size) % 3}


# Sharding came with torch 2.6.
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
SINCE_2_6 = _VERSION >= (2, 6)
# On the CPU.
SHARDS = _VERSION >= (2, 8)


def whole(tensor):
    """Return a tensor that may be sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def through_pickle(module):
    """Return what becomes of a module that is sent to another process."""
    return pickle.loads(pickle.dumps(module))  # noqa: S301 - our own


class SavedNumbers(torch.autograd.graph.saved_tensors_hooks):
    """Counts the numbers that autograd keeps for the backward pass."""

    def __init__(self):
        self.count = 0
        super().__init__(self._note, lambda tensor: tensor)

    def __enter__(self):
        super().__enter__()
        return self

    def _note(self, tensor):
        self.count += tensor.numel()
        return tensor


def replaced(model):
    """Return the names of the modules whose forward is replaced."""
    return [name for name, module in model.named_modules() if "forward" in vars(module)]
