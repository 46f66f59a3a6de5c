"""A small model, and an optimizer that tells which gradients it was given."""

import torch
from torch import nn


class RecordingSGD(torch.optim.SGD):
    """Keeps the gradients that each step saw, whole."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def step(self, closure=None):
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in grads]
        self.seen.append([g.clone() for g in whole])
        return super().step(closure)


def make_model():
    """Equal parameters in every process; float64, so that sums in any order agree."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
