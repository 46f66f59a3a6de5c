"""Parameters that sleep in some steps, where gradients are set to zero in place."""

from pathlib import Path

import pytest
import torch
from test_resume_ranks import BUCKETS, NOISY, _resumed_equals_whole
from torch import nn
from toy import NO_VALIDATION, loader_cfg, runner_arguments

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.model import BaseModel
from mm_runner.runner import verify_resume

ADAMW = {"type": "AdamW", "lr": 0.01}
FUSED = {"type": "NpuFusedAdamW", "lr": 0.01}  # sets gradients to zero of its own accord


class Sleeping(BaseModel):
    """A branch of it is used in two of three steps."""

    def __init__(self):
        super().__init__()
        self.stem, self.branch, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("num_calls", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs, labels, mode="tensor"):
        hidden = self.stem(inputs)
        if self.training:
            self.num_calls += 1
        if self.num_calls % 3:
            hidden = hidden + self.branch(hidden)
        scores = self.head(hidden)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


class SetsToZero(Sleeping):
    """Its step sets gradients to zero, and not to ``None``."""

    def train_step(self, data, optim_wrapper):
        with optim_wrapper.optim_context(self):
            losses = self(**data, mode="loss")
        loss, logs = self.parse_losses(losses)
        optim_wrapper.update_params(loss, zero_kwargs={"set_to_none": False})
        return logs


@pytest.mark.filterwarnings("ignore:NpuFusedAdamW runs as its portable implementation")
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (SetsToZero, ADAMW),
        (SetsToZero, {"type": "SGD", "lr": 0.1, "momentum": 0.9}),
        (Sleeping, ADAMW),
        (Sleeping, FUSED),
    ],
)
@pytest.mark.parametrize("at_step", [2, 3, 4])
def test_they_are_stepped_over_as_without_a_stop(tmp_path, model, optimizer, at_step):
    cfg = runner_arguments(
        tmp_path, model={"type": model}, optim_wrapper={"optimizer": optimizer}, **NO_VALIDATION
    )
    report = verify_resume(cfg, at_step=at_step, steps=8)
    assert report.equal, str(report)


def test_only_gradients_that_are_there_take_place_in_a_checkpoint(make_runner):
    by_default = 6 if torch.__version__.startswith("1.") else 0  # torch sets to zero before 2.0
    for model, expected in ((SetsToZero, 6), (Sleeping, by_default)):
        runner = make_runner(model={"type": model}, **NO_VALIDATION)
        runner.train()
        checkpoint = load_checkpoint_file(runner.work_dir / "epoch_2.pth")
        assert len(checkpoint.get("zeroed_gradients", ())) == expected


class Sparse(SetsToZero):
    """With rows of a table, of which each batch changes some."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(3, 3, sparse=True)
        for part in (self.stem, self.branch, self.head):
            part.requires_grad_(requires_grad=False)

    def forward(self, inputs, labels, mode="tensor"):
        self.num_calls += self.training
        scores = self.head(self.stem(inputs))
        if self.num_calls % 3:
            scores = scores + self.table(labels)
        if mode == "loss":
            return {
                "loss": nn.functional.cross_entropy(scores, labels) + 0 * self.table(labels).sum()
            }
        return (scores, labels) if mode == "predict" else scores


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # by torch's own optimizers
@pytest.mark.parametrize("optimizer", ["SparseAdam", "Adagrad", "SGD"])
@pytest.mark.parametrize("at_step", [2, 3])
def test_sparse_gradients_stay_sparse(tmp_path, optimizer, at_step):
    wrapper = {"optimizer": {"type": optimizer, "lr": 0.1}}
    cfg = runner_arguments(tmp_path, model={"type": Sparse}, optim_wrapper=wrapper, **NO_VALIDATION)
    report = verify_resume(cfg, at_step=at_step, steps=6)
    assert report.equal, str(report)


def _four_ranks(_, work_dir):
    wrapper = {**BUCKETS["model_wrapper_cfg"], "find_unused_parameters": True}
    _resumed_equals_whole(
        Path(work_dir) / "sleeping",
        stop=5,
        model={"type": Sleeping},
        optim_wrapper={"optimizer": FUSED},
        train_dataloader=loader_cfg(**NOISY),
        cfg={"model_wrapper_cfg": wrapper},
    )


def test_four_ranks_step_over_them_as_without_a_stop(run_ranks, tmp_path):
    run_ranks(_four_ranks, 4, str(tmp_path))
