"""How long a training step stalls while a checkpoint of 500 MB is saved.

One run that waits for the file, and one whose thread writes it, in one process, on the same model
and the same disk; both end with the file flushed to the disk (fsync) and renamed. The first save of
each is left out: it gives the memory for the copy to the process, which is kept afterwards.

* ``stall``: what ``CheckpointHook`` takes of the step that saves.
* ``slower``: how much longer the steps after it take together than as many without a save, until
  the file is whole. The writing thread needs a processor and the disk meanwhile.

With ``--ranks 2`` the model is sharded over gloo processes (torch 2.8 or newer), each of which
writes its part, and tells its own times.

Run: ``python async_checkpoint.py [--megabytes 500] [--saves 6] [--steps 8] [--ranks 1] [--json
FILE]``. It prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import Dataset
from typing_extensions import override

from mm_runner import Runner
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.model import BaseModel

_WIDTH = 1024


class Ones(Dataset):
    """As many samples as are asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(_WIDTH), torch.tensor(0)


class Deep(BaseModel):
    """Layers of 4 MB each; with the momentum of SGD, 8 MB each in a checkpoint."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(num_layers)))

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor, mode: str = "tensor") -> object:
        scores = self.layers(inputs)
        return {"loss": nn.functional.cross_entropy(scores, labels)} if mode == "loss" else scores


class Stopwatch(Hook):
    """The moments at which steps begin, the checkpoint hook is called, and has returned."""

    priority = "LOWEST"

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.stalls: list[float] = []

    @override
    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: object = None) -> None:
        self.begins.append(time.perf_counter())


class TimedCheckpointHook(CheckpointHook):
    """The hook, and how long each of its saves took the step."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)
        self.stalls: list[float] = []

    @override
    def after_train_iter(self, runner: Runner, batch_idx: int, *args: object, **kw: object) -> None:
        begin = time.perf_counter()
        super().after_train_iter(runner, batch_idx, *args, **kw)
        if (runner.iter + 1) % self.interval == 0:
            self.stalls.append(time.perf_counter() - begin)


def measure(directory: Path, options: argparse.Namespace, *, in_background: bool) -> dict:
    """Train, saving every ``options.steps`` steps, and return the times in seconds."""
    num_layers = max(round(options.megabytes * 1e6 / (2 * 4 * _WIDTH * (_WIDTH + 1))), 1)
    hook = TimedCheckpointHook(
        by_epoch=False,
        interval=options.steps,
        save_last=False,
        max_keep_ckpts=2,
        async_save=in_background,
    )
    watch = Stopwatch()
    Runner(
        model=Deep(num_layers),
        work_dir=directory,
        train_dataloader={
            "dataset": Ones(
                options.ranks * options.batch_size * options.steps * (options.saves + 1)
            ),
            "sampler": {"type": "DefaultSampler", "shuffle": False},
            "batch_size": options.batch_size,
            "collate_fn": "default_collate",
        },
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1e-3, "momentum": 0.9}},
        default_hooks={"checkpoint": hook, "logger": None},
        custom_hooks=[watch],
        randomness={"seed": 0},
        log_level="ERROR",
        cfg=(
            {"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}}
            if options.ranks > 1
            else None
        ),
    ).train()
    # Of a model in parts, the folder with them is larger by far than the file.
    newest = max(directory.glob("iter_*.pth*"), key=lambda path: path.stat().st_mtime)
    files = [path for path in (newest, *newest.rglob("*")) if path.is_file()]
    lengths = [end - begin for begin, end in zip(watch.begins, watch.begins[1:], strict=False)]
    # The steps before the first save, short of the first of all, which is slower.
    plain = statistics.median(lengths[1 : options.steps - 1])
    slower = [
        sum(lengths[first : first + options.steps - 1]) - plain * (options.steps - 1)
        for first in range(2 * options.steps, len(lengths) - options.steps, options.steps)
    ]
    return {
        "megabytes": sum(path.stat().st_size for path in files) / 1e6,
        "step": plain,
        "first_stall": hook.stalls[0],
        "stalls": hook.stalls[1:],
        "slower": slower,
    }


def main() -> None:
    """Measure both, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=500.0)
    parser.add_argument("--saves", type=int, default=6)
    parser.add_argument("--steps", type=int, default=8, help="steps between two saves")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--directory", type=Path, help="where to write; default: a temporary one")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ranks", type=int, default=1, help="processes a model is sharded over")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        if options.ranks == 1:
            run_rank(0, Path(folder), options)
        else:
            mp.spawn(run_rank, (Path(folder), options), nprocs=options.ranks)
        results = [
            json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(options.ranks)
        ]
    for rank, of_rank in enumerate(results):
        show(rank, of_rank)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def run_rank(rank: int, folder: Path, options: argparse.Namespace) -> None:
    """Measure both on one process, and write the times to a file of its own."""
    torch.set_num_threads(1)
    if options.ranks > 1:
        meeting = f"file://{folder / 'store'}"
        dist.init_process_group("gloo", meeting, rank=rank, world_size=options.ranks)
    results = {
        name: measure(folder / name, options, in_background=in_background)
        for name, in_background in (("synchronous", False), ("asynchronous", True))
    }
    (folder / f"{rank}.json").write_text(json.dumps(results))
    if options.ranks > 1:
        dist.barrier()
        time.sleep(0.05)  # gloo's threads still release objects
        dist.destroy_process_group()


def show(rank: int, results: dict[str, dict]) -> None:
    """Print the table of one process."""
    print(f"rank {rank:<9}{'MB':>8}{'step s':>9}{'first s':>9}{'stall s':>9}{'slower s':>10}")
    for name, one in results.items():
        stall, slower = statistics.median(one["stalls"]), statistics.median(one["slower"])
        print(
            f"{name:14}{one['megabytes']:8.0f}{one['step']:9.3f}{one['first_stall']:9.3f}"
            f"{stall:9.3f}{slower:10.3f}"
        )
    medians = [statistics.median(one["stalls"]) for one in results.values()]
    print(f"stall, asynchronous to synchronous: {medians[1] / medians[0]:.1%}")


if __name__ == "__main__":
    main()
