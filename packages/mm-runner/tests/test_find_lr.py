"""``mm-runner find-lr``: what it trains, when it ends, what it suggests, and what it leaves."""

import itertools
import math
import time

import pytest
import torch
from torch import nn
from torch.utils.data import default_collate
from toy import TRAINING_YAML, Blobs, Classifier, RecordRates, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.cli import main
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.tools import find_learning_rate

_STEPS = 40


class Bowl(BaseModel):
    """Gradient descent on ``w^2``: rates below 1 make its loss fall, those above make it grow."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs, labels, mode="tensor"):  # noqa: ARG002
        return {"loss": self.weight.square()}


def cfg_of(tmp_path, **changes):
    return runner_arguments(tmp_path / "unused", **{"train_cfg": {"max_epochs": 1}, **changes})


def rates_of(points):
    return [point.lr for point in points]


def test_the_rate_grows_exponentially_from_the_first_to_the_last(tmp_path):
    report = find_learning_rate(cfg_of(tmp_path), min_lr=1e-6, max_lr=1e-2, steps=_STEPS)
    rates = rates_of(report.points)
    assert len(rates) == _STEPS
    assert rates[0] == 1e-6
    assert rates[-1] == pytest.approx(1e-2)
    factors = [after / before for before, after in itertools.pairwise(rates)]
    assert factors == pytest.approx([1e4 ** (1 / (_STEPS - 1))] * (_STEPS - 1))
    assert not report.diverged


class Listening(Hook):
    """A user's hook, which runs along; it notes what the optimizer is given."""

    seen: list = []  # noqa: RUF012 - of the class, as hooks are copied

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        rates = [float(group["lr"]) for group in runner.optim_wrapper.param_groups]
        type(self).seen.append((runner.iter, *rates))


def test_groups_keep_their_ratios_and_accumulated_batches_are_one_step(tmp_path):
    del Listening.seen[:]
    wrapper = {
        "optimizer": {"type": "SGD", "lr": 0.5, "weight_decay": 0.1},
        "accumulative_counts": 3,
        "paramwise_cfg": {"bias_lr_mult": 2.0},
    }
    report = find_learning_rate(
        cfg_of(tmp_path, optim_wrapper=wrapper, custom_hooks=[Listening()]), steps=_STEPS
    )
    assert [index for index, *_ in Listening.seen] == list(range(3 * len(report.points)))
    for index, *rates in Listening.seen:
        lr = report.points[index // 3].lr
        assert sorted(set(rates)) == pytest.approx([lr, 2 * lr])


def test_a_rate_below_that_of_divergence_is_suggested(tmp_path):
    report = find_learning_rate(
        cfg_of(tmp_path, model={"type": Bowl}), min_lr=1e-4, max_lr=1e3, steps=_STEPS
    )
    assert report.diverged
    assert 1e-2 < report.suggestion < 1


class Growing(Bowl):
    """Its loss is 1 for some steps, and grows by a fifth in each after that."""

    num_steps = 0

    def forward(self, inputs, labels, mode="tensor"):
        self.num_steps += 1
        growth = 1.2 ** max(self.num_steps - 10, 0)
        return {"loss": 0 * super().forward(inputs, labels, mode)["loss"] + growth}


def test_it_ends_when_the_smoothed_loss_is_four_times_its_best(tmp_path):
    report = find_learning_rate(cfg_of(tmp_path, model={"type": Growing}), steps=_STEPS)
    assert report.diverged
    smoothed = [point.smoothed for point in report.points]
    assert min(smoothed) == pytest.approx(1)
    assert smoothed[-2] < 4 < smoothed[-1]
    assert report.suggestion is None


class Overflowing(Bowl):
    def forward(self, inputs, labels, mode="tensor"):
        losses = super().forward(inputs, labels, mode)
        return {"loss": losses["loss"] / (0 if losses["loss"] < 0.5 else 1)}


def test_it_ends_when_the_loss_is_no_number(tmp_path):
    report = find_learning_rate(
        cfg_of(tmp_path, model={"type": Overflowing}), min_lr=1e-3, max_lr=1, steps=_STEPS
    )
    assert report.diverged
    assert all(math.isfinite(point.loss) for point in report.points)


def test_it_begins_with_the_weights_of_a_checkpoint_and_does_not_resume(tmp_path, make_runner):
    del Listening.seen[:]
    make_runner().train()
    checkpoint = tmp_path / "run" / "epoch_2.pth"
    weights = load_checkpoint_file(checkpoint)["state_dict"]
    cfg = cfg_of(tmp_path, load_from=str(checkpoint), resume=True, custom_hooks=[Listening()])
    report = find_learning_rate(cfg, min_lr=1e-9, max_lr=1e-8, steps=10)
    assert [index for index, *_ in Listening.seen] == list(range(10))
    model = Classifier()
    model.load_state_dict(weights)
    loss = model(**default_collate(list(Blobs())), mode="loss")["loss"].item()
    assert report.points[-1].smoothed == pytest.approx(loss, rel=0.5)


def test_what_a_run_would_do_besides_is_off(tmp_path):
    recorded = RecordRates()
    cfg = cfg_of(
        tmp_path,
        param_scheduler={"type": "StepLR", "step_size": 1, "gamma": 0.1},
        custom_hooks=[recorded, {"type": "EMAHook"}, {"type": "EarlyStoppingHook", "monitor": "x"}],
        default_hooks={"checkpoint": {"interval": 1, "by_epoch": False}},
        visualizer={"vis_backends": [{"type": "TensorboardVisBackend"}]},
        auto_scale_lr={"base_batch_size": 64, "enable": True},
        resume=True,
    )
    before = repr(cfg)
    state = torch.get_rng_state()
    report = find_learning_rate(cfg, min_lr=1e-3, max_lr=1e-2, steps=10)
    assert rates_of(report.points) == pytest.approx([1e-3 * 10 ** (i / 9) for i in range(10)])
    assert repr(cfg) == before
    assert recorded.rates == []  # a copy of it ran
    assert torch.equal(torch.get_rng_state(), state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        ({"min_lr": 1.0, "max_lr": 0.1}, {}, r"0 < min_lr < max_lr .* got min_lr=1, max_lr=0\.1"),
        ({"steps": 3}, {}, r"at least 10 steps are needed; .* steps=3"),
        (
            {},
            {"optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.0}}},
            r"a positive optim_wrapper\.optimizer\.lr is needed",
        ),
        ({}, {"optim_wrapper": None}, r"train_cfg were given without optim_wrapper; .*give all"),
    ],
)
def test_what_does_not_fit_is_told(tmp_path, arguments, changes, message):
    with pytest.raises(ConfigError, match=message):
        find_learning_rate(cfg_of(tmp_path, **changes), **arguments)


def test_the_command_prints_a_table_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TRAINING_YAML)
    arguments = ["find-lr", "run.yaml", "--steps", "30", "--min-lr", "1e-4"]
    assert main([*arguments, "--out", "found/lr.svg"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["lr", "loss", "smoothed"]
    assert len(lines) < 20
    assert "Suggested: optim_wrapper.optimizer.lr=" in "\n".join(lines)
    assert "<svg" in (tmp_path / "found" / "lr.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found", "run.yaml"]


class Ranked(Classifier):
    """Its loss differs from process to process."""

    def forward(self, inputs, labels, mode="tensor"):
        losses = super().forward(inputs, labels, mode)
        return {"loss": losses["loss"] * 0 + torch.distributed.get_rank()}


class FailingOnOne(Classifier):
    def forward(self, inputs, labels, mode="tensor"):
        if torch.distributed.get_rank() == 1:
            raise ValueError("on this one")
        return super().forward(inputs, labels, mode)


def _find_on_ranks(rank, work_dir):
    loader = loader_cfg(batch_size=2)
    cfg = runner_arguments(f"{work_dir}/unused", model={"type": Ranked}, train_dataloader=loader)
    report = find_learning_rate(cfg, steps=12)
    assert [point.loss for point in report.points] == [0.5] * 12
    # A process that fails does not wait for the others.
    cfg["model"] = {"type": FailingOnOne}
    begin_s = time.monotonic()
    error = ValueError if rank else RuntimeError  # the first one notices the other's end
    with pytest.raises(error):
        find_learning_rate(cfg, steps=12)
    assert not rank or time.monotonic() - begin_s < 30


def test_losses_are_means_over_processes(run_ranks, tmp_path):
    run_ranks(_find_on_ranks, 2, tmp_path)
