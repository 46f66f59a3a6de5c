"""What all trainers train: models and data, and the clock that watches them."""

from __future__ import annotations

import itertools
import json
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

LEARNING_RATE = 1e-4
LOG_INTERVAL = 50
STRIDE = 5  # steps from one note of the clock to the next
PROFILED = 10  # steps at the end of a run
_CLASSES, _DISTINCT_SAMPLES, _WORKERS = 1000, 64, 4


@dataclass(frozen=True)
class Task:
    """What is asked of a trainer.

    Attributes:
        model: ``"gpt2"`` or ``"resnet50"``.
        precision: ``"float32"``, ``"tf32"``, or, mixed, ``"bfloat16"`` or ``"float16"``.
        compiled: ``""``, or what is compiled: ``"whole"``, or ``"regions"`` for block by block.
        device: ``"cuda"`` or ``"cpu"``.
        steps: How many to train.
        small: Sizes that a processor can train: to try the benchmark, not to measure.
    """

    model: str
    precision: str
    compiled: str
    device: str
    steps: int
    small: bool

    @property
    def is_mixed(self) -> bool:
        return self.precision in ("bfloat16", "float16")

    @property
    def batch_size(self) -> int:
        if self.small:
            return 2
        return 16 if self.model == "gpt2" else 256

    @property
    def length(self) -> int:
        """Words of a text."""
        return 16 if self.small else 1024

    @property
    def num_items(self) -> int:
        """Images, or words, of a step."""
        return self.batch_size * (self.length if self.model == "gpt2" else 1)

    @property
    def num_words(self) -> int:
        return 512 if self.small else 50_304

    @property
    def edge(self) -> int:
        """Pixels of an image's edge."""
        return 64 if self.small else 224


class Block(nn.Module):
    """A causal transformer's block that normalizes first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = self.project_in(self.norm_1(x)).unflatten(2, (3, self.heads, -1))
        mixed = nn.functional.scaled_dot_product_attention(
            *heads.permute(2, 0, 3, 1, 4), is_causal=True
        )
        x = x + self.project_out(mixed.transpose(1, 2).flatten(2))
        hidden = nn.functional.gelu(self.first(self.norm_2(x)), approximate="tanh")
        return x + self.last(hidden)


class GPT2(nn.Module):
    """GPT-2 small: 124 million parameters, the embedding's weights being the head's too."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        width, heads, depth = (32, 2, 2) if task.small else (768, 12, 12)
        self.embedding = nn.Embedding(task.num_words, width)
        self.positions = nn.Embedding(task.length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.num_words, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, inputs, labels):
        x = self.blocks(self.embedding(inputs) + self.positions.weight)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def convolution(num_in: int, num_out: int, size: int, stride: int = 1) -> list[nn.Module]:
    layer = nn.Conv2d(num_in, num_out, size, stride, size // 2, bias=False)
    return [layer, nn.BatchNorm2d(num_out)]


class Bottleneck(nn.Module):
    """Three convolutions, and what is added to them."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *(*convolution(num_in, width, 1), nn.ReLU()),
            *(*convolution(width, width, 3, stride), nn.ReLU()),
            *convolution(width, 4 * width, 1),
        )
        is_same = num_in == 4 * width
        shortcut = [] if is_same else convolution(num_in, 4 * width, 1, stride)
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x):
        return torch.relu(self.convolutions(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet-50: 25.6 million parameters, channels last."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        width = 4 if task.small else 64
        num_in, blocks = width, []
        for stage, depth in enumerate((1, 1, 1, 1) if task.small else (3, 4, 6, 3)):
            for index in range(depth):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(Bottleneck(num_in, width << stage, stride))
                num_in = 4 * (width << stage)
        self.stem = nn.Sequential(*convolution(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(num_in, _CLASSES)
        self.to(memory_format=torch.channels_last)

    def forward(self, inputs, labels):
        # Images travel as bytes.
        x = (inputs / 255 - 0.5).contiguous(memory_format=torch.channels_last)
        scores = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return nn.functional.cross_entropy(scores, labels)


class Samples(Dataset):
    """As many samples as asked for, of a few that are kept: reading them costs next to nothing."""

    def __init__(self, task: Task) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (3, task.edge, task.edge) if task.model == "resnet50" else (task.length + 1,)
        end = 256 if task.model == "resnet50" else task.num_words
        rows = torch.randint(end, (_DISTINCT_SAMPLES, *shape), generator=generator)
        if task.model == "resnet50":
            self._pairs = [(x, torch.tensor(i % _CLASSES)) for i, x in enumerate(rows.byte())]
        else:
            self._pairs = [(row[:-1], row[1:]) for row in rows]
        self._size = task.steps * task.batch_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict:
        inputs, labels = self._pairs[index % _DISTINCT_SAMPLES]
        return {"inputs": inputs, "labels": labels}


class StepClock:
    """Notes when steps end, without waiting for the device.

    After the first third, in which caches fill, steps are timed; in the following ones, an interval
    of logging, what waits for the device is counted; the last few are profiled.
    """

    def __init__(self, task: Task) -> None:
        self._on_device = task.device == "cuda"
        num_watched = PROFILED + LOG_INTERVAL if self._on_device else 0
        self._timed = range(task.steps // 3, task.steps - num_watched)
        self._end = task.steps
        self._begin = time.perf_counter()
        self._marks: list = []
        self._step = 0
        self._catch: warnings.catch_warnings | None = None
        self._profile: profile | None = None
        self._waits: list = []
        self.first_step_s = 0.0
        self.kernels_ms: float | None = None

    def tick(self) -> None:
        """Say that a step was given to the device."""
        self._step += 1
        if self._step == 1:
            if self._on_device:
                torch.cuda.synchronize()
            self.first_step_s = time.perf_counter() - self._begin
        if self._step in self._timed and self._step % STRIDE == 0:
            self._marks.append(self._mark())
        if not self._on_device:
            return
        if self._step == self._timed.stop:
            self._catch = warnings.catch_warnings(record=True)
            self._waits = self._catch.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
        elif self._step == self._end - PROFILED:
            torch.cuda.set_sync_debug_mode("default")
            self._catch.__exit__(None, None, None)
            torch.cuda.synchronize()
            self._profile = profile(activities=[ProfilerActivity.CUDA])
            self._profile.__enter__()
        elif self._step == self._end:
            torch.cuda.synchronize()
            self._profile.__exit__(None, None, None)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "trace.json")
                self._profile.export_chrome_trace(str(path))
                self.kernels_ms = read_kernels(path) / PROFILED

    def milliseconds(self) -> list[float]:
        """Return milliseconds per step, one for each stride."""
        if self._on_device:
            torch.cuda.synchronize()
            spans = [begin.elapsed_time(end) for begin, end in itertools.pairwise(self._marks)]
        else:
            spans = [1e3 * (end - begin) for begin, end in itertools.pairwise(self._marks)]
        return [span / STRIDE for span in spans]

    def waits_per_step(self) -> float | None:
        """Return how often a step made the host wait for the device; None without a GPU."""
        if not self._on_device:
            return None
        return sum("synchroniz" in str(one.message) for one in self._waits) / LOG_INTERVAL

    def _mark(self):
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def read_kernels(path: Path) -> float:
    """Return for how many milliseconds of a trace at least one kernel ran."""
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [(one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") == "kernel"]
    total = reached = 0.0
    for begin, end in sorted(kernels):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total / 1e3


def build_model(task: Task) -> nn.Module:
    torch.manual_seed(0)
    return GPT2(task) if task.model == "gpt2" else ResNet50(task)


def compile_model(model: nn.Module, task: Task) -> nn.Module:
    if task.compiled == "regions":
        for block in model.blocks:
            block.compile()
    return torch.compile(model) if task.compiled == "whole" else model


def build_loader(task: Task) -> DataLoader:
    return DataLoader(
        Samples(task),
        batch_size=task.batch_size,
        num_workers=2 if task.small else _WORKERS,
        pin_memory=task.device == "cuda",
    )


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    # What this repository chooses where the device has it, for all alike.
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)


def set_precision(task: Task) -> None:
    """Set what is one setting of torch for all trainers."""
    is_exact = task.precision == "float32"
    torch.set_float32_matmul_precision("highest" if is_exact else "high")
    torch.backends.cudnn.allow_tf32 = not is_exact
    torch.backends.cudnn.benchmark = True


def count_operations(task: Task) -> int:
    """Return floating-point operations of a step: forward, and twice that for backward.

    Those of the matrix products and convolutions; attention counts whole, not its causal half.
    """
    sample = Samples(task)[0]
    with torch.device("meta"):
        model = build_model(task)
    inputs, labels = (sample[name][None].to("meta") for name in ("inputs", "labels"))
    with FlopCounterMode(display=False) as counter:
        model(inputs, labels)
    return 3 * counter.get_total_flops() * task.batch_size
