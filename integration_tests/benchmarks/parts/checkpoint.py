"""(h) How long a training step stalls while a checkpoint is saved, and how slow the next ones are.

A checkpoint of 500 MB (50 with ``--quick``), half of it the momentum of SGD: as one file of one
process, and as shards of a model over two gloo processes (DCP). A stall is what the save takes of
its step: of mm-runner all of its ``CheckpointHook``, of others the call; each removes the file
before the last one, too. The first stall is told apart: copies in memory are made then, and kept.
``by_hand`` calls ``torch.save`` and fsync, then renames; for shards it calls
``torch.distributed.checkpoint.save``, and ``by_hand_async`` its ``async_save``. accelerate and
Fabric leave it to the system when the file reaches the disk. The five steps after a save tell what
a writing thread, or the system, takes of them meanwhile.
"""

import importlib
import json
import os
import shutil
import statistics
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard

TITLE = "Checkpoint"
BASE = "by_hand"
AIM = "mm_runner_async stalls at most 0.1 of mm_runner"
SYSTEMS = {
    BASE: "torch",
    "by_hand_async": "torch",
    "mm_runner": "mm-runner",
    "mm_runner_async": "mm-runner",
    "accelerate": "accelerate",
    "lightning_fabric": "lightning-fabric",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 3, 0, False
_SHARDED = ("by_hand", "by_hand_async", "mm_runner", "mm_runner_async")
_WIDTH, _SAVES, _STEPS = 1024, 4, 6  # saves, and steps from one to the next


def measure(systems, quick, folder):
    (system,) = systems
    num_layers = round((50 if quick else 500) / (2 * 4 * _WIDTH * (_WIDTH + 1) / 1e6))
    values = {}
    if system != "by_hand_async":
        values |= train(system, num_layers, folder / "file", "one file")
    if system in _SHARDED and not quick:
        mp.spawn(train_rank, (system, num_layers, folder), nprocs=2)
        values |= json.loads((folder / "values.json").read_text())
    return {system: values}


def train_rank(rank, system, num_layers, folder):
    dist.init_process_group("gloo", f"file://{folder / 'store'}", rank=rank, world_size=2)
    values = train(system, num_layers, folder / "shards", "two shards")
    if rank == 0:
        (folder / "values.json").write_text(json.dumps(values))
    dist.barrier()
    time.sleep(0.05)  # gloo's threads still release objects
    dist.destroy_process_group()


def train(system, num_layers, folder, label):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    is_ours = system.startswith("mm_runner")
    begins, stalls = (train_runner if is_ours else train_by_hand)(system, num_layers, folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size < num_layers * 8 * _WIDTH**2:
        raise RuntimeError(f"{system} has not written all: {size} bytes.")
    after = [
        begins[index + _STEPS - 1] - begins[index]
        for index in range(2 * _STEPS, len(begins) - _STEPS + 1, _STEPS)
    ]
    return {
        f"milliseconds of a stall, {label}": statistics.median(stalls[1:]) * 1e3,
        f"milliseconds of the first stall, {label}": stalls[0] * 1e3,
        f"milliseconds of {_STEPS - 1} steps after a save, {label}": statistics.median(after) * 1e3,
    }


class Deep(nn.Sequential):
    """Layers of 4 MB each; with the momentum of SGD, 8 MB each in a checkpoint."""

    def __init__(self, num_layers):
        super().__init__(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(num_layers)))


def make_loader(num_ranks=1):
    num_batches = num_ranks * ((_SAVES + 1) * _STEPS - 1)
    samples = [(torch.ones(_WIDTH), 0)] * (32 * num_batches)
    return torch.utils.data.DataLoader(samples, batch_size=32)


def train_by_hand(system, num_layers, folder):
    """Return when the steps began, and the seconds that each save took."""
    model = Deep(num_layers)
    if dist.is_initialized():
        for layer in (*model, model):
            fully_shard(layer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    model, optimizer, save = make_save(system, model, optimizer)
    folder.mkdir(exist_ok=True)
    begins, stalls = [], []
    for number, (inputs, labels) in enumerate(make_loader(), start=1):
        begins.append(time.perf_counter())
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        if number % _STEPS == 0:
            begin = time.perf_counter()
            save(folder / f"{number}")
            remove(folder / f"{number - 2 * _STEPS}")
            stalls.append(time.perf_counter() - begin)
    return begins, stalls


def make_save(system, model, optimizer):
    """Return model, optimizer and what saves them, as the system has them."""
    running = []
    # The writer's collectives must not meet those of the steps.
    group = dist.new_group() if dist.is_initialized() else None

    def save_file(path):
        with path.with_suffix(".unfinished").open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".unfinished").rename(path)

    def save_shards(path):
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        if system == BASE:
            dcp.save(states, checkpoint_id=path)
            return
        if running:
            running.pop().result()
        running.append(dcp.async_save(states, checkpoint_id=path, process_group=group))

    if system == "accelerate":
        accelerator = importlib.import_module("accelerate").Accelerator(cpu=True)
        return *accelerator.prepare(model, optimizer), accelerator.save_state
    if system == "lightning_fabric":
        fabric = importlib.import_module("lightning_fabric").Fabric(accelerator="cpu", devices=1)
        model, optimizer = fabric.setup(model, optimizer)
        states = {"model": model, "optimizer": optimizer}
        return model, optimizer, lambda path: fabric.save(path, states)
    return model, optimizer, save_shards if dist.is_initialized() else save_file


def remove(path):
    """Remove an older checkpoint, if it is there."""
    if path.is_file():
        path.unlink()
    elif not dist.is_initialized() or dist.get_rank() == 0:
        shutil.rmtree(path, ignore_errors=True)


def train_runner(system, num_layers, folder):
    """Return the same of a Runner."""
    from mm_runner import Runner  # noqa: PLC0415 (of one system)
    from mm_runner.hooks import CheckpointHook, Hook  # noqa: PLC0415
    from mm_runner.model import BaseModel  # noqa: PLC0415

    begins, stalls = [], []

    class Model(BaseModel):
        def __init__(self):
            super().__init__()
            self.layers = Deep(num_layers)

        def forward(self, inputs, labels, mode="loss"):  # noqa: ARG002 (the Runner's signature)
            return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}

    class Clock(Hook):
        priority = "LOWEST"

        def before_train_iter(self, *args, **kwargs):  # noqa: ARG002
            begins.append(time.perf_counter())

    class TimedCheckpointHook(CheckpointHook):
        def after_train_iter(self, runner, *args, **kwargs):
            begin = time.perf_counter()
            super().after_train_iter(runner, *args, **kwargs)
            if (runner.iter + 1) % _STEPS == 0:
                stalls.append(time.perf_counter() - begin)

    hook = TimedCheckpointHook(
        by_epoch=False,
        interval=_STEPS,
        save_last=False,
        max_keep_ckpts=2,
        async_save=system == "mm_runner_async",
    )
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    wrapper = {"model_wrapper_cfg": {"type": "MMFullyShardedDataParallel"}}
    Runner(
        model=Model(),
        work_dir=folder,
        train_dataloader=make_loader(num_ranks),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1e-3, "momentum": 0.9}},
        default_hooks={"checkpoint": hook, "logger": None},
        custom_hooks=[Clock()],
        log_level="ERROR",
        cfg=wrapper if num_ranks > 1 else None,
    ).train()
    return begins, stalls
