"""A run that goes on from the middle of an epoch takes the steps of one that was never stopped."""

import random
import sys

import pytest
import rich.progress  # noqa: F401 - draws a random number of Python's on import
import torch
from test_resume import COSINE, DROPOUT, MOMENTUM, scalars_of
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from toy import CPU_LOW_PRECISION, NO_VALIDATION, Blobs, Killed, loader_cfg
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel

# A killed run's loader closes the queues of its workers while threads may still write to them.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class StopAfter(Hook):
    """Saves after a step, and ends the run as a kill would."""

    priority = "LOWEST"

    def __init__(self, step):
        self.step = step

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.step:
            runner.save_checkpoint(runner.work_dir, f"iter_{self.step}.pth")
            raise Killed


class Seen(Hook):
    """Keeps the labels and the loss of every step."""

    def __init__(self):
        self.steps = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        labels = data_batch["labels"] if isinstance(data_batch, dict) else data_batch
        self.steps.append((batch_idx, repr(labels), outputs["loss"].item()))


class BatchNormed(BaseModel):
    """With statistics, and a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs, labels, mode="tensor"):
        scores = self.layers(inputs)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def state_of(runner):
    """All that a later step depends on."""
    wrapper = runner.optim_wrapper.state_dict()
    return {
        "model": runner.model.state_dict(),
        "optimizer": {k: v for k, v in wrapper.items() if k != "param_groups"},
        "rates": [group["lr"] for group in wrapper["param_groups"]],
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": sys.modules["numpy"].random.get_state()[1].tolist(),
        "counts": (runner.epoch, runner.iter, runner.max_iters),
    }


def assert_alike(got, expected, path="state"):
    assert type(got) is type(expected), path
    if isinstance(expected, dict):
        assert got.keys() == expected.keys(), path
        for key in expected:
            assert_alike(got[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(got, expected), path
    else:
        assert got == expected, path


def train_whole_and_in_parts(make_runner, tmp_path, arguments, stops):
    """Return the runner, and what its steps saw, of an uninterrupted run and of a stopped one."""
    whole_seen, parts_seen = Seen(), Seen()
    whole = make_runner(work_dir=tmp_path / "whole", custom_hooks=[whole_seen], **arguments())
    whole.train()
    expected = state_of(whole)
    for stop in stops:
        # A new process knows nothing of the old one's generators.
        torch.manual_seed(1234)
        random.seed(1234)
        sys.modules["numpy"].random.seed(1234)
        part = make_runner(
            work_dir=tmp_path / "parts",
            resume=True,
            custom_hooks=[parts_seen, *([StopAfter(stop)] if stop else [])],
            **arguments(),
        )
        if stop:
            with pytest.raises(Killed):
                part.train()
        else:
            part.train()
    assert parts_seen.steps == whole_seen.steps
    assert_alike(state_of(part), expected)
    return whole, part


EPOCHS = {"max_epochs": 3}
ITERATIONS = {"by_epoch": False, "max_iters": 18, "val_interval": 5}
NOISY = {"dataset": Blobs(noise=0.5)}


@pytest.mark.parametrize(
    ("train_cfg", "changes", "stops"),
    [
        (EPOCHS, {"train_dataloader": loader_cfg(**NOISY)}, [1, 6, 7, None]),
        (
            ITERATIONS,
            {
                "optim_wrapper": {
                    "type": "AmpOptimWrapper",
                    "dtype": CPU_LOW_PRECISION,
                    "accumulative_counts": 2,
                    "clip_grad": {"max_norm": 1.0},
                    "optimizer": {"type": "AdamW", "lr": 0.01},
                },
                "train_dataloader": loader_cfg(num_workers=2, **NOISY),
            },
            [4, 14, None],
        ),
        (
            EPOCHS,
            {
                "model": {"type": BatchNormed},
                "train_dataloader": loader_cfg(
                    num_workers=2, persistent_workers=True, drop_last=True, batch_size=5, **NOISY
                ),
            },
            [3, 4, 11, None],
        ),
    ],
    ids=["augmented", "amp-accumulating-workers", "persistent-workers-drop-last"],
)
def test_a_run_resumed_within_an_epoch_equals_an_uninterrupted_one(
    make_runner, tmp_path, train_cfg, changes, stops
):
    def arguments():
        return {
            "model": DROPOUT,
            "optim_wrapper": {"optimizer": MOMENTUM},
            "param_scheduler": [COSINE, {"type": "ExponentialLR", "gamma": 0.9}],
            "train_cfg": train_cfg,
            "default_hooks": {"checkpoint": None, "logger": {"interval": 2}},
            **changes,
        }

    train_whole_and_in_parts(make_runner, tmp_path, arguments, stops)
    # The means in a log line reach back before the stop.
    lines = [line for line in scalars_of(tmp_path / "parts") if line["mode"] == "train"]
    assert lines == [line for line in scalars_of(tmp_path / "whole") if line["mode"] == "train"]


class Stream(IterableDataset):
    """``size`` noisy samples, told apart by their labels; knows its position if asked to."""

    def __init__(self, size=24):
        self.blobs = Blobs(size, noise=0.5)
        self.drawn = []

    def __iter__(self):
        for index in range(self.position, len(self.blobs)):
            self.drawn.append(index)
            self.position = index + 1
            yield self.blobs[index]
        self.position = 0

    position = 0


class StatefulStream(Stream):
    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def weighted(size=24, **options):
    dataset = Blobs(size, noise=0.5)
    sampler = WeightedRandomSampler(torch.arange(1.0, size + 1), size, **options)
    return {"dataset": dataset, "batch_size": 4, "collate_fn": "default_collate"} | {
        "sampler": sampler
    }


def shuffled_in_batches():
    sampler = RandomSampler(Blobs(noise=0.5), generator=torch.Generator().manual_seed(1))
    batches = BatchSampler(sampler, 4, drop_last=False)
    return DataLoader(Blobs(noise=0.5), batch_sampler=batches)


def stateful_loader():
    kind = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    generator = torch.Generator().manual_seed(1)
    return kind(Blobs(noise=0.5), batch_size=4, shuffle=True, generator=generator)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it
@pytest.mark.parametrize(
    ("loader", "is_dropped"),
    [
        (lambda: weighted(generator=torch.Generator().manual_seed(1)), False),
        (shuffled_in_batches, True),
        (stateful_loader, False),
        (
            lambda: DataLoader(Blobs(noise=0.5), batch_size=4, shuffle=True, num_workers=1),
            True,
        ),
        (
            lambda: {"dataset": Stream(), "batch_size": 4, "collate_fn": "default_collate"},
            True,
        ),
        (
            lambda: {"dataset": StatefulStream(), "batch_size": 4, "collate_fn": "default_collate"},
            False,
        ),
    ],
    ids=[
        "sampler-with-a-generator",
        "batches-with-a-generator",
        "stateful-loader",
        "ready-loader-with-worker",
        "stream",
        "stateful-stream",
    ],
)
def test_loaders_that_are_not_ours_go_on_exactly_too(make_runner, tmp_path, loader, is_dropped):
    def arguments():
        return {
            "model": DROPOUT,
            "optim_wrapper": {"optimizer": MOMENTUM},
            "train_dataloader": loader(),
            "train_cfg": {"by_epoch": False, "max_iters": 14},
            "default_hooks": {"checkpoint": None, "logger": None},
            **NO_VALIDATION,
        }

    _, resumed = train_whole_and_in_parts(make_runner, tmp_path, arguments, [4, 8, None])
    log = (resumed.log_dir / f"{resumed.timestamp}.log").read_text()
    assert ("2 batches are drawn and dropped" in log) is is_dropped
    if isinstance(resumed.train_dataloader.dataset, StatefulStream):
        assert resumed.train_dataloader.dataset.drawn[0] == 8


def test_a_checkpoint_waits_for_the_step_that_takes_accumulated_gradients_in(make_runner, tmp_path):
    def arguments():
        return {
            "model": DROPOUT,
            "optim_wrapper": {"optimizer": MOMENTUM, "accumulative_counts": 4},
            "default_hooks": {"checkpoint": {"interval": 1}, "logger": None},
            "train_cfg": {"max_epochs": 3},
            **NO_VALIDATION,
        }

    whole = make_runner(work_dir=tmp_path / "whole", **arguments())
    whole.train()
    expected = state_of(whole)
    # An epoch has 6 steps: that of the first ends in the middle of a window.
    for name, data in (("epoch_1", (1, 2, 8)), ("epoch_2", (2, 0, 12)), ("epoch_3", (3, 0, 18))):
        (saved,) = load_checkpoint_file(whole.work_dir / f"{name}.pth")["data"]
        assert (saved["epoch"], saved["position"]["batch"], saved["iter"]) == data
    resumed = make_runner(
        work_dir=tmp_path / "resumed",
        load_from=str(whole.work_dir / "epoch_1.pth"),
        resume=True,
        **arguments(),
    )
    resumed.train()
    assert_alike(state_of(resumed), expected)


class Learner(Hook):
    """Lets what a validation found change the training, and keeps it."""

    factor = 1.0

    @override
    def after_val_epoch(self, runner, metrics=None):
        self.factor *= 0.5 + metrics["accuracy"] / 2
        for group in runner.optim_wrapper.param_groups:
            group["lr"] = 0.1 * self.factor

    @override
    def state_dict(self):
        return {"factor": self.factor}

    @override
    def load_state_dict(self, state_dict):
        self.factor = state_dict["factor"]


def test_a_hook_that_learns_from_validations_goes_on_with_all_it_learned(make_runner, tmp_path):
    """Its checkpoints are written before the validation that it learned from last."""

    class Stop(Hook):
        @override
        def before_train_epoch(self, runner):
            if runner.epoch == 2:
                raise Killed

    def run(directory, *hooks, **options):
        hooks = [Learner(), Learner(), *hooks]
        return make_runner(
            work_dir=tmp_path / directory,
            train_cfg={"max_epochs": 4},
            custom_hooks=hooks,
            **options,
        )

    whole = run("whole")
    whole.train()
    with pytest.raises(Killed):
        run("parts", Stop()).train()
    resumed = run("parts", resume=True)
    resumed.train()
    assert_alike(state_of(resumed), state_of(whole))
    saved = load_checkpoint_file(resumed.work_dir / "epoch_4.pth")["hooks"]
    assert set(saved) == {"Learner", "Learner#2"}
    learners = [hook for hook in resumed.hooks if isinstance(hook, Learner)]
    assert learners[0].factor == next(h for h in whole.hooks if isinstance(h, Learner)).factor < 1


def test_a_checkpoint_from_within_a_validation_goes_on_exactly(make_runner, tmp_path):
    class StopWithin(Hook):
        @override
        def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.epoch == 1 and batch_idx == 1:
                runner.save_checkpoint(runner.work_dir, "iter_6.pth")
                raise Killed

    def run(directory, *hooks, **options):
        noisy = loader_cfg(dataset=Blobs(9, noise=0.5))  # a validation draws random numbers
        return make_runner(
            work_dir=tmp_path / directory,
            model=DROPOUT,
            val_dataloader=noisy,
            custom_hooks=hooks,
            default_hooks={"checkpoint": None},
            **options,
        )

    whole = run("whole")
    whole.train()
    with pytest.raises(Killed):
        run("parts", StopWithin()).train()
    resumed = run("parts", resume=True)
    resumed.train()
    assert_alike(state_of(resumed), state_of(whole) | {"counts": (2, 12, 12)})
    validated = [line["epoch"] for line in scalars_of(tmp_path / "parts") if line["mode"] == "val"]
    assert validated == [1, 2]


def test_what_an_mmengine_checkpoint_does_not_say_is_taken_from_its_counts(make_runner, tmp_path):
    seen = Seen()
    cfg = {"train_cfg": {"by_epoch": False, "max_iters": 14}, **NO_VALIDATION}
    whole = make_runner(work_dir=tmp_path / "whole", custom_hooks=[seen], **cfg)
    whole.train()
    content = load_checkpoint_file(next((tmp_path / "whole").glob("*.pth")))
    del content["data"], content["rng"], content["message_hub"]
    content["meta"] = {"epoch": 0, "iter": 8, "seed": 0}
    torch.save(content, tmp_path / "other.pth")
    rest = Seen()
    resumed = make_runner(
        resume=True, load_from=str(tmp_path / "other.pth"), custom_hooks=[rest], **cfg
    )
    resumed.train()
    assert [labels for _, labels, _ in rest.steps] == [labels for _, labels, _ in seen.steps[8:]]
    log = (resumed.log_dir / f"{resumed.timestamp}.log").read_text()
    assert "no random numbers of this process: they start again from the seed" in log


def test_data_of_another_length_are_named(make_runner):
    with pytest.raises(Killed):
        make_runner(custom_hooks=[StopAfter(8)]).train()
    resumed = make_runner(resume=True, train_dataloader=loader_cfg(40))
    resumed.train()
    assert (
        "written in a pass of 6 batches, which has 10 in this run: the dataset or the batch size "
        "has changed. The data continue after sample 8 of pass 2."
    ) in next(resumed.log_dir.glob("*.log")).read_text()
