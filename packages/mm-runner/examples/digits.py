"""Handwritten digits and a small ResNet: what both example scripts train.

The 1,797 images of 8 x 8 pixels ship inside the scikit-learn wheel; nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from mm_runner.model import BaseModel
from mm_runner.tools import plot_runs

if TYPE_CHECKING:
    from mm_runner import Runner

# Of a fixed permutation of the images, so that every run is tested on the same ones.
NUM_TEST, NUM_VAL = 360, 180


def digits(split: str) -> TensorDataset:
    """Return images of shape ``(1, 8, 8)``, centred and scaled, with their labels.

    Args:
        split: ``"train"`` (1,257 images), ``"val"`` (180) or ``"test"`` (360).
    """
    source = load_digits()
    order = torch.randperm(len(source.images), generator=torch.Generator().manual_seed(0))
    chosen = {
        "test": order[:NUM_TEST],
        "val": order[NUM_TEST : NUM_TEST + NUM_VAL],
        "train": order[NUM_TEST + NUM_VAL :],
    }[split]
    images = torch.tensor(source.images, dtype=torch.float32)[chosen].unsqueeze(1)
    labels = torch.tensor(source.target, dtype=torch.long)[chosen]
    # Pixels count from 0 to 16; their mean and deviation are about 5 and 6.
    return TensorDataset((images - 5) / 6, labels)


class Block(nn.Module):
    """Two convolutions around a shortcut without parameters, as in the CIFAR networks of the paper.

    He et al., "Deep Residual Learning for Image Recognition", 2015, option A: where the image gets
    smaller, the shortcut takes every second pixel and fills the new channels with zeros.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride = stride

    def forward(self, inputs: Tensor) -> Tensor:
        """Take and return ``(batch, channels, height, width)``."""
        hidden = functional.relu(self.norm1(self.conv1(inputs)))
        hidden = self.norm2(self.conv2(hidden))
        shortcut = inputs[:, :, :: self.stride, :: self.stride]
        new_channels = hidden.shape[1] - shortcut.shape[1]
        return functional.relu(hidden + functional.pad(shortcut, (0, 0, 0, 0, 0, new_channels)))


class DigitsResNet(BaseModel):
    """A ResNet of three stages with two blocks each, for 8 x 8 images."""

    def __init__(self, width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.stages = nn.Sequential(
            Block(width, width, 1),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 2 * width, 1),
            Block(2 * width, 4 * width, 2),
            Block(4 * width, 4 * width, 1),
        )
        self.head = nn.Linear(4 * width, num_classes)

    def forward(
        self, images: Tensor, labels: Tensor, mode: str = "tensor"
    ) -> dict[str, Tensor] | tuple[Tensor, Tensor] | Tensor:
        """Take ``(batch, 1, 8, 8)`` and ``(batch,)``, return what ``mode`` asks for."""
        # Grey as three equal channels: a ResNet takes three, and of a single one torch would warn
        # that its gradient's strides differ from the parameter's, which then means nothing.
        hidden = self.stages(self.stem(images.expand(-1, 3, -1, -1)))
        scores = self.head(hidden.mean(dim=(2, 3)))
        if mode == "loss":
            return {"loss": functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def dataloader(split: str, batch_size: int) -> dict[str, object]:
    """Return the config of a dataloader; ``batch_size`` is that of one process."""
    return {
        "dataset": digits(split),
        "batch_size": batch_size,
        "collate_fn": "default_collate",
        # A batch of another size would be compiled once more, for one step an epoch.
        "drop_last": split == "train",
    }


def report(runner: Runner, at_least: float = 0.0) -> None:
    """Test the trained model, draw the curves, and say where everything is.

    Args:
        runner: After training.
        at_least: Test accuracy, in percent, below which the program fails.
    """
    accuracy = 100 * runner.test()["accuracy"]
    if runner.rank == 0:
        curves = plot_runs([runner.work_dir], Path(runner.work_dir) / "curves.png")
        checkpoint = (runner.work_dir / "last_checkpoint").read_text(encoding="utf-8").strip()
        print(f"test accuracy: {accuracy:.2f} %")
        print(f"checkpoint:    {runner.work_dir / checkpoint}")
        print(f"curves:        {curves}")
    if accuracy < at_least:
        raise SystemExit(f"The test accuracy is {accuracy:.2f} %; {at_least} % was asked for.")
