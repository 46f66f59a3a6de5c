"""What all trainers train: models and data, and the clock that watches them."""

from __future__ import annotations

import itertools
import time
import warnings
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LEARNING_RATE = 1e-4
LOG_INTERVAL = 50
_WORDS, _CLASSES, _DISTINCT_SAMPLES = 50_304, 1000, 64
_WORKERS = 2


@dataclass(frozen=True)
class Task:
    """What is asked of a trainer.

    Attributes:
        model: ``"transformer"`` or ``"convnet"``.
        precision: ``"float32"``, or ``"bfloat16"`` or ``"float16"`` for mixed precision.
        compiled: Whether the model is compiled.
        device: ``"cuda"`` or ``"cpu"``.
        steps: How many to train.
        small: Sizes that a processor can train: to try the benchmark, not to measure.
    """

    model: str
    precision: str
    compiled: bool
    device: str
    steps: int
    small: bool


class Block(nn.Module):
    """A causal transformer's block that normalizes first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.project_in(self.norm_1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.last(nn.functional.gelu(self.first(self.norm_2(x))))


class Transformer(nn.Module):
    """The sizes of GPT-2 small."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        width, heads, depth = (32, 2, 2) if small else (768, 12, 12)
        self.embedding = nn.Embedding(_WORDS, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _WORDS, bias=False)

    def forward(self, inputs, labels):
        x = self.embedding(inputs)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


class Residual(nn.Module):
    """Two convolutions and what is added to them, as in ResNet-18."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        stride = 1 if num_in == num_out else 2
        self.conv_1 = nn.Conv2d(num_in, num_out, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(num_out, num_out, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(num_out), nn.BatchNorm2d(num_out)
        self.shortcut = nn.Identity()
        if stride != 1:
            project = nn.Conv2d(num_in, num_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(project, nn.BatchNorm2d(num_out))

    def forward(self, x):
        y = torch.relu(self.norm_1(self.conv_1(x)))
        return torch.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x))


class ConvNet(nn.Module):
    """The layers of ResNet-18."""

    def __init__(self, *, small: bool) -> None:
        super().__init__()
        width = 4 if small else 64
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width]
        pairs = zip(widths, [*widths[1:], 8 * width], strict=True)
        self.blocks = nn.Sequential(*(Residual(*pair) for pair in pairs))
        self.head = nn.Linear(8 * width, _CLASSES)

    def forward(self, inputs, labels):
        features = self.blocks(self.stem(inputs)).mean((2, 3))
        return nn.functional.cross_entropy(self.head(features), labels)


class Samples(Dataset):
    """As many samples as asked for, of a few that are kept: reading them costs next to nothing."""

    def __init__(self, task: Task, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        if task.model == "transformer":
            length = 16 if task.small else 512
            words = torch.randint(_WORDS, (_DISTINCT_SAMPLES, length + 1), generator=generator)
            self._pairs = [(row[:-1], row[1:]) for row in words]
        else:
            edge = 32 if task.small else 224
            images = torch.randn(_DISTINCT_SAMPLES, 3, edge, edge, generator=generator)
            self._pairs = [(image, torch.tensor(i % _CLASSES)) for i, image in enumerate(images)]
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict:
        inputs, labels = self._pairs[index % _DISTINCT_SAMPLES]
        return {"inputs": inputs, "labels": labels}


class StepClock:
    """Notes when steps end, without waiting for the device, and counts what waits for it.

    Args:
        task: The training.
        stride: Steps from one note to the next.
    """

    def __init__(self, task: Task, stride: int) -> None:
        self._on_device = task.device == "cuda"
        self._stride = stride
        self._counted = range(task.steps // 2, task.steps // 2 + 2 * stride)
        self._begin = time.perf_counter()
        self._marks: list = []
        self._step = 0
        self._catch: warnings.catch_warnings | None = None
        self._waits: list = []
        self.first_step_s = 0.0

    def tick(self) -> None:
        """Say that a step was given to the device."""
        self._step += 1
        if self._step == 1:
            if self._on_device:
                torch.cuda.synchronize()
            self.first_step_s = time.perf_counter() - self._begin
        if self._step % self._stride == 0:
            self._marks.append(self._mark())
        if self._on_device and self._step == self._counted.start:
            self._catch = warnings.catch_warnings(record=True)
            self._waits = self._catch.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        if self._catch is not None and self._step == self._counted.stop:
            torch.cuda.set_sync_debug_mode("default")
            self._catch.__exit__(None, None, None)
            self._catch = None

    def milliseconds(self) -> list[float]:
        """Return milliseconds per step, one for each stride of the second half."""
        marks = self._marks[len(self._marks) // 2 :]
        if self._on_device:
            torch.cuda.synchronize()
            spans = [begin.elapsed_time(end) for begin, end in itertools.pairwise(marks)]
        else:
            spans = [1e3 * (end - begin) for begin, end in itertools.pairwise(marks)]
        return [span / self._stride for span in spans]

    def waits_per_step(self) -> float | None:
        """Return how often a step made the host wait for the device; None without a GPU."""
        if not self._on_device:
            return None
        synchronizing = [one for one in self._waits if "synchroniz" in str(one.message)]
        return len(synchronizing) / len(self._counted)

    def _mark(self):
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def build_model(task: Task) -> nn.Module:
    torch.manual_seed(0)
    kind = Transformer if task.model == "transformer" else ConvNet
    return kind(small=task.small)


def batch_size(task: Task) -> int:
    if task.small:
        return 2
    return 16 if task.model == "transformer" else 128


def build_loader(task: Task) -> DataLoader:
    size = batch_size(task)
    return DataLoader(
        Samples(task, task.steps * size),
        batch_size=size,
        num_workers=_WORKERS,
        pin_memory=task.device == "cuda",
    )


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    # What this repository chooses where the device has it, for all alike.
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
