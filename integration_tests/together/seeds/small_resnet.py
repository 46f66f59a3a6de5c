"""What the documents' snippets take for granted: a ResNet18 and a dataloader's config."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from mm_runner.model import BaseModel


class BasicBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = nn.Identity()
        if stride > 1:
            self.downsample = nn.Conv2d(channels_in, channels, 1, stride)

    def forward(self, x):
        out = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(out + self.downsample(x))


class ResNet18(BaseModel):
    """A miniature of it, quick to compile: two stages of one basic block, for 8 x 8 images."""

    def __init__(self, width=8):
        super().__init__()
        torch.manual_seed(0)
        self.conv1 = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, 2 * width, 2))
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, imgs, labels, mode="tensor"):
        x = self.fc(self.layers(self.conv1(imgs)).mean(dim=(2, 3)))
        if mode == "loss":
            return {"loss": functional.cross_entropy(x, labels)}
        return (x, labels) if mode == "predict" else x


def random_images(size=256):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(size, 1, 8, 8, generator=generator)
    return TensorDataset(images, torch.randint(10, (size,), generator=generator))


train_dataloader_cfg = {
    "batch_size": 32,
    "sampler": {"type": "DefaultSampler", "shuffle": True},
    "collate_fn": {"type": "default_collate"},
    "dataset": random_images(),
}


def save_outcome(runner):
    """Leave this rank's parameters, and what wrapped them, for the test to compare."""
    module = getattr(runner.model, "module", runner.model)
    outcome = {
        "parameters": {name: value.detach() for name, value in module.named_parameters()},
        "wrapper": type(runner.model).__name__,
        "epoch": runner.epoch,
        "find_unused_parameters": getattr(runner.model, "find_unused_parameters", None),
        "graphs": runner.compile_handle.report().graphs if runner.cfg.get("compile") else 0,
    }
    torch.save(outcome, f"outcome_{runner.rank}.pt")
