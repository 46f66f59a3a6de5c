"""The first and the last lines of a training's log, and what it says if it waits for data."""

import platform
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn
from toy import (
    CPU_LOW_PRECISION,
    NO_VALIDATION,
    Blobs,
    Classifier,
    Scripted,
    loader_cfg,
)
from typing_extensions import override

from mm_runner.hooks import Hook
from mm_runner.runner._summary import describe_optimizer

_VERSIONS = (
    f"Python {platform.python_version()}, torch {torch.__version__}, "
    f"mm-runner {version('mm-runner')}"
)


def log_of(runner):
    return next(Path(runner.log_dir).glob("*.log")).read_text()


def lines_under(title, log):
    """Return what stands in the lines below ``title``, by what each is about."""
    (block,) = re.findall(rf"{title}[^\n]*\n((?:  [^\n]*\n)+)", log)
    found = {}
    for line in block.splitlines():
        about, text = line.split(maxsplit=1)
        found.setdefault(about, []).append(text)
    return found


def test_the_start_tells_what_is_really_used(make_runner):
    runner = make_runner(
        optim_wrapper={
            "type": "AmpOptimWrapper",
            "dtype": CPU_LOW_PRECISION,
            "accumulative_counts": 2,
            "optimizer": {"type": "SGD", "lr": 0.1, "foreach": True},
        },
        randomness={"seed": 7},
    )
    runner.model.layers[0].bias.requires_grad = False
    runner.train()
    told = lines_under("Training Classifier", log_of(runner))
    threads = torch.get_num_threads()
    assert told == {
        "devices": [f"1 x cpu ({threads} threads each), launcher none"],
        "versions": [_VERSIONS],
        "parameters": ["67 in float32, of which 59 are trained"],
        "precision": [f"{CPU_LOW_PRECISION} by autocast"],
        "compile": ["off"],
        "optimizer": ["SGD (foreach) in AmpOptimWrapper"],
        "batch": ["8 = 4 per rank x 1 rank(s) x 2 accumulated"],
        "length": ["12 steps in 2 epochs, a step being one batch, 2 to an optimizer step"],
        "seed": ["7"],
        "checkpoints": [str(runner.work_dir)],
        "logs": [str(runner.log_dir)],
    }


def test_a_resumed_run_tells_how_far_it_is(make_runner):
    make_runner(train_cfg={"by_epoch": True, "max_epochs": 1}).train()
    runner = make_runner(resume=True)
    runner.train()
    told = lines_under("Training Classifier", log_of(runner))
    assert told["length"] == ["12 steps in 2 epochs, 6 of them done"]
    assert "Trained Classifier: 6 steps in " in log_of(runner)


@pytest.mark.parametrize(
    ("done", "asked"),
    [
        ({"max_epochs": 2}, {"max_epochs": 1}),
        ({"by_epoch": False, "max_iters": 8}, {"by_epoch": False, "max_iters": 5}),
        ({"max_epochs": 2}, {"max_epochs": 2}),
    ],
    ids=["epochs", "steps", "as many"],
)
def test_a_resumed_run_with_nothing_left_to_train_says_so(make_runner, done, asked):
    make_runner(train_cfg=done).train()
    runner = make_runner(resume=True, train_cfg=asked)
    runner.train()
    steps = done.get("max_iters", 12)
    assert (runner.iter, runner.max_iters) == (steps, min(asked.get("max_iters", 12), steps))
    told = lines_under("Training Classifier", log_of(runner))
    assert told["length"] == [f"no step, {steps} are done"]


def test_a_run_resumed_within_the_epoch_after_the_last_one_says_so(make_runner):
    checkpoint = {"by_epoch": False, "interval": 5}
    make_runner(default_hooks={"checkpoint": checkpoint}).train()
    work_dir = make_runner(train_cfg={"max_epochs": 1}).work_dir
    runner = make_runner(
        train_cfg={"max_epochs": 1}, resume=True, load_from=str(work_dir / "iter_10.pth")
    )
    runner.train()
    assert (runner.iter, runner.max_iters) == (10, 10)
    told = lines_under("Training Classifier", log_of(runner))
    assert told["length"] == ["no step, 10 are done"]


def test_an_optimizer_is_named_with_what_it_really_is():
    model = nn.Linear(2, 2)
    assert describe_optimizer(torch.optim.AdamW(model.parameters())) == "AdamW"
    group = {"fused": True, "capturable": True}  # as on an accelerator
    fused = type("Adam", (), {"__module__": "torch.optim.adam", "param_groups": [group]})()
    assert describe_optimizer(fused, is_compiled=True) == "Adam (fused, capturable, compiled)"
    mine = type("Mine", (torch.optim.SGD,), {"__module__": "my_package.optimizers"})
    assert describe_optimizer(mine(model.parameters(), lr=0.1)) == "Mine (of my_package)"


def test_the_receipt_tells_what_the_training_was(make_runner):
    runner = make_runner(
        val_evaluator=Scripted(values=[0.75, 0.5]),
        default_hooks={"checkpoint": {"save_best": "accuracy"}},
    )
    runner.train()
    told = lines_under("Trained Classifier: 12 steps in [0-9.]+ s", log_of(runner))
    assert re.fullmatch(r"[\d,.]+ samples/s, [\d.e+]+ ms per step", told["speed"][0])
    assert re.fullmatch(r"\d+% of it waiting for data", told["data"][0])
    assert re.fullmatch(r"[\d.]+ s", told["validation"][0])
    assert told["best"] == ["accuracy 0.75 after epoch 1, step 6: best_accuracy.pth"]
    assert told["checkpoints"] == [str(runner.work_dir)]
    assert told["logs"] == [str(runner.log_dir)]
    assert "skipped" not in told


class Overflows(Classifier):
    """Its third step has a gradient that is not finite."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def forward(self, inputs, labels, mode="tensor"):
        result = super().forward(inputs, labels, mode)
        if mode == "loss":
            self.steps += 1
            result["loss"] = result["loss"] * (float("inf") if self.steps == 3 else 1.0)
        return result


def test_skipped_steps_are_counted(make_runner):
    wrapper = {"type": "AmpOptimWrapper", "dtype": "bfloat16", "max_skips": 2}
    runner = make_runner(
        model=Overflows(),
        optim_wrapper={**wrapper, "optimizer": {"type": "SGD", "lr": 0.1}},
        **NO_VALIDATION,
    )
    runner.train()
    told = lines_under("Trained Overflows", log_of(runner))
    assert told["skipped"] == ["1 steps, gradients not finite"]


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Steps(Hook):
    """Takes ``seconds`` of each step."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.clock.now += self.seconds


class SlowBlobs(Blobs):
    """Each sample takes ``seconds`` to load."""

    def __init__(self, clock, seconds):
        super().__init__(24)
        self.clock, self.seconds = clock, seconds

    def __getitem__(self, index):
        self.clock.now += self.seconds
        return super().__getitem__(index)


def train_timed(make_runner, clock, *, load_s, step_s, epochs=18):
    """Train six steps an epoch; four samples make a batch."""
    runner = make_runner(
        train_dataloader=loader_cfg(dataset=SlowBlobs(clock, load_s / 4)),
        train_cfg={"by_epoch": True, "max_epochs": epochs},
        custom_hooks=[Steps(clock, step_s)],
        **NO_VALIDATION,
    )
    runner.train()
    return log_of(runner)


def test_the_share_of_waiting_for_data_ends_the_log(make_runner, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    log = train_timed(make_runner, clock, load_s=4.0, step_s=6.0)
    assert "40% of it waiting for data" in log
