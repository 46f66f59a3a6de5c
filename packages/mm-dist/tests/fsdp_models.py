"""Models and an optimizer wrapper for the tests of sharding."""

import contextlib

import pytest
import torch
from torch import nn

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_fully_shard = pytest.mark.skipif(
    TORCH < (2, 8), reason="fully_shard is right on the CPU since torch 2.8"
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, inputs):
        return inputs + self.down(self.up(inputs).relu())


class Net(nn.Module):
    """Sizes that do not divide evenly, a list of blocks, a buffer, a frozen parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(4, 5)
        self.blocks = nn.ModuleList(Block(5) for _ in range(3))
        self.head = nn.Linear(5, 3)
        self.head.bias.requires_grad_(False)  # noqa: FBT003
        self.register_buffer("scale", torch.tensor([2.0]))

    def data_preprocessor(self, data, training):  # noqa: ARG002
        return data

    def forward(self, inputs, mode="loss"):
        hidden = self.stem(inputs)
        for block in self.blocks:
            hidden = block(hidden)
        outputs = self.head(hidden) * self.scale
        return {"loss": outputs.float().square().mean()} if mode == "loss" else outputs

    def parse_losses(self, losses):
        return losses["loss"], {"loss": losses["loss"].detach()}


class Optim:
    """A stand-in for an optimizer wrapper: accumulates, and exchanges at the end of a window."""

    def __init__(self, model, window=1):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.01)
        self.param_groups = self.optimizer.param_groups
        self.window = window
        self.count = 0
        self.deferred = contextlib.ExitStack()

    @contextlib.contextmanager
    def optim_context(self, model):
        if (self.count + 1) % self.window:
            # Beyond this context: sharded modules decide in backward.
            self.deferred.enter_context(model.no_sync())
        yield

    def update_params(self, loss):
        (loss / self.window).backward()
        self.deferred.close()
        self.count += 1
        if self.count % self.window == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def group_names(model):
    """Return the names of the modules that are gathered by themselves."""
    return [name for name, part in model.named_modules() if hasattr(part, "unshard")]


def init_mesh(*shape, names=None):
    make = torch.distributed.device_mesh.init_device_mesh
    return make("cpu", shape, mesh_dim_names=names)
