"""(g) From the start of a process to the end of the first new step of a resumed run.

The checkpoints are made in the middle of a shuffled epoch of 2,000,000 samples, after 1,000 and
after 1,000,000 of them; what may cost time after many is to skip them. Each system does that in its
documented way: Lightning's Trainer by a loader with ``state_dict`` (it would begin the epoch anew),
accelerate by ``skip_first_batches``, and by hand the order is cut. The first new batch has to be
the one that followed the checkpoint.
"""

# ruff: noqa: PLC0415 (only what is measured is imported)

import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TITLE = "Resume"
BASE = "by_hand"
AIM = "flat: as fast after 1,000,000 samples as after 1,000"
SYSTEMS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "lightning_trainer": "pytorch-lightning",
    "accelerate": "accelerate",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 0, False
_SIZE, _BATCH_SIZE = 2_000_000, 1_000
_SAVED = (1, 1_000)  # after that many steps


def measure(systems, quick, folder):
    (system,) = systems
    torch.set_num_threads(1)
    made, values = Model(), {}
    globals()[system](made, folder, 0)
    for step in _SAVED[-1:] if quick else _SAVED:
        command = [sys.executable, "-m", "parts.resume", system, str(folder), str(step)]
        begin = time.monotonic()
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        if done.returncode != 0:
            raise RuntimeError(f"{system} did not resume:\n{done.stderr}")
        end, batch = json.loads((folder / "resumed.json").read_text())
        if batch != made.batches[step]:
            raise RuntimeError(f"{system} continues with another batch after step {step}.")
        values[f"seconds after {step * _BATCH_SIZE:,} samples"] = end - begin
    return {system: values}


def main():
    system, folder, step = sys.argv[1:]
    model = Model()
    globals()[system](model, Path(folder), int(step))
    found = model.times[1], model.batches[0]  # the first step has ended where the second begins
    Path(folder, "resumed.json").write_text(json.dumps(found))


class Samples(Dataset):
    """Samples that cost next to nothing, a batch at once."""

    def __len__(self):
        return _SIZE

    def __getitems__(self, indices):
        return {"inputs": torch.as_tensor(indices, dtype=torch.float32)[:, None] / _SIZE}


def keep(batch):
    return batch


class Model(nn.Module):
    """A layer and its loss; keeps what each batch begins with, and when."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.times, self.batches = [], []

    def forward(self, inputs):
        self.times.append(time.monotonic())
        self.batches.append(inputs[:3, 0].tolist())
        return self.layer(inputs).square().mean()


def build_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def last_step(resumed):
    """Return the step to end at: a new one, and one more to know its end by."""
    return resumed + 2 if resumed else _SAVED[-1] + 1


class Shuffled:
    """Batches of a shuffled epoch, from any of them on."""

    def __init__(self, first=0):
        self.first = first

    def __len__(self):
        return _SIZE // _BATCH_SIZE

    def __iter__(self):
        order = torch.randperm(_SIZE, generator=torch.Generator().manual_seed(0))
        return iter(order[self.first * _BATCH_SIZE :].split(_BATCH_SIZE))


def by_hand(model, folder, resumed):
    optimizer = build_optimizer(model)
    if resumed:
        state = torch.load(folder / f"{resumed}.pth")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
    loader = DataLoader(Samples(), batch_sampler=Shuffled(resumed), collate_fn=keep)
    for step, batch in enumerate(loader, start=resumed + 1):
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == last_step(resumed):
            break
        if step in _SAVED:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "rng": torch.get_rng_state()}, folder / f"{step}.pth")


def mm_runner(model, folder, resumed):
    from mm_runner import Runner
    from mm_runner.model import Supervised

    interval = _SAVED[-1] - _SAVED[0]
    checkpoint = {"by_epoch": False, "interval": interval, "save_begin": 1, "save_last": False}
    loader = {"dataset": Samples(), "batch_size": _BATCH_SIZE, "collate_fn": keep}
    loader["sampler"] = {"type": "DefaultSampler", "shuffle": True}
    Runner(
        model=Supervised(model),
        work_dir=folder,
        train_dataloader=loader,
        train_cfg={"by_epoch": False, "max_iters": last_step(resumed)},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01, "momentum": 0.9}},
        default_hooks={"checkpoint": {"type": "CheckpointHook", **checkpoint}},
        load_from=folder / f"iter_{resumed}.pth" if resumed else None,
        resume=bool(resumed),
    ).train()


def lightning_trainer(model, folder, resumed):
    from pytorch_lightning import Callback, LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _index):
            return self.model(**batch)

        def configure_optimizers(self):
            return build_optimizer(self.model)

    class Loader(DataLoader):
        def __iter__(self):
            self.drawn = self.batch_sampler.first
            for batch in super().__iter__():
                self.drawn += 1
                yield batch

        def state_dict(self):
            return {"drawn": self.drawn}

        def load_state_dict(self, state):
            self.batch_sampler.first = state["drawn"]

    class Save(Callback):
        def on_train_batch_end(self, trainer, *_arguments):
            if trainer.global_step in _SAVED:
                trainer.save_checkpoint(folder / f"{trainer.global_step}.ckpt")

    left_out = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings = {"accelerator": "cpu", "devices": 1, **dict.fromkeys(left_out, False)}
    trainer = Trainer(max_steps=last_step(resumed), callbacks=[Save()], **settings)
    loader = Loader(Samples(), batch_sampler=Shuffled(), collate_fn=keep)
    trainer.fit(Module(), loader, ckpt_path=folder / f"{resumed}.ckpt" if resumed else None)


def accelerate(model, folder, resumed):
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(0)
    order = DataLoaderConfiguration(use_seedable_sampler=True)  # else resuming draws another one
    accelerator = Accelerator(cpu=True, dataloader_config=order)
    optimizer = build_optimizer(model)
    loader = DataLoader(Samples(), _BATCH_SIZE, shuffle=True, collate_fn=keep)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if resumed:
        accelerator.load_state(str(folder / str(resumed)))
        loader = accelerator.skip_first_batches(loader, resumed)
    for step, batch in enumerate(loader, start=resumed + 1):
        loss = model(**batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == last_step(resumed):
            break
        if step in _SAVED:
            accelerator.save_state(str(folder / str(step)))


if __name__ == "__main__":
    main()
