"""``mm-runner check``: the plan of a run that is not begun."""

import json
import re
import sys

import pytest
import torch
from strict_task import strict_config
from torch import nn
from torch.utils.data import IterableDataset
from toy import Blobs, Classifier, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.cli import main
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.tools import make_plan

_needs_meta = pytest.mark.skipif(
    not hasattr(torch, "set_default_device"), reason="torch before 2.0 builds no model on meta"
)


class Lazy(Classifier):
    """Needs values as it is built, which the meta device has not."""

    def __init__(self):
        super().__init__()
        self.scale = float(torch.ones(1).item())


class Huge(BaseModel):
    """Would take 400 GB."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(100_000, 100_000, bias=False) for _ in range(10))

    def forward(self, mode="tensor"):
        raise AssertionError(mode)


class Wide(Classifier):
    """One MiB of weights."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Linear(512, 512, bias=False)


class Unreadable(Blobs):
    def __getitem__(self, index):
        raise AssertionError(index)


def plan_of(tmp_path, *, world_size=1, **overrides):
    return make_plan(runner_arguments(tmp_path / "run", **overrides), world_size=world_size)


class Batches(IterableDataset):
    def __len__(self):
        return 5

    def __iter__(self):
        raise AssertionError


def test_the_plan_of_a_dataset_that_gives_whole_batches(tmp_path):
    train = {"dataset": Batches(), "batch_size": None}
    plan = plan_of(tmp_path, world_size=2, train_dataloader=train)
    assert "as the dataset gives it x 2 process(es) x 1 accumulated" in plan
    assert "length        10 steps = 2 epochs x 5" in plan
    with pytest.raises(ConfigError, match=r"^auto_scale_lr: how many samples a batch has"):
        plan_of(
            tmp_path,
            train_dataloader=train,
            auto_scale_lr={"base_batch_size": 12, "enable": True},
        )


def test_the_plan_counts_what_the_run_would_have(tmp_path):
    plan = plan_of(
        tmp_path,
        world_size=2,
        optim_wrapper={
            "optimizer": {"type": "AdamW", "lr": 0.1, "weight_decay": 0.5},
            "accumulative_counts": 3,
            "paramwise_cfg": {"bias_decay_mult": 0.0},
        },
        auto_scale_lr={"base_batch_size": 12, "enable": True},
        train_dataloader={"dataset": Unreadable(25), "batch_size": 4},
        val_dataloader={"dataset": Unreadable(25), "batch_size": 4},
    )
    assert "model         Classifier: 67 parameters, 67 trained" in plan
    assert "optimizer     torch.optim.adamw.AdamW in OptimWrapper" in plan
    assert "56 parameters in 2 tensors; lr 0.2, weight_decay 0.5" in plan
    assert "11 parameters in 2 tensors; lr 0.2, weight_decay 0" in plan
    assert "batch         24 = 4 of a process x 2 process(es) x 3 accumulated" in plan
    assert "length        8 steps = 2 epochs x 4" in plan
    assert "note          The optimizer steps once in 3 steps of the run, which are batches" in plan
    assert "wrapper       MMDistributedDataParallel" in plan
    assert not (tmp_path / "run").exists()


@_needs_meta
def test_a_model_larger_than_memory_is_planned(tmp_path):
    plan = plan_of(tmp_path, model={"type": Huge}, optim_wrapper={"optimizer": {"type": "Adam"}})
    assert "optimizer 762,939." in plan  # MiB
    assert "note" not in plan


@_needs_meta
def test_a_model_that_needs_values_is_built_with_them(tmp_path):
    assert "built with its values" in plan_of(tmp_path, model={"type": Lazy})


def rates_in(plan):
    found = re.findall(r"schedule +step (\d+).*: lr (.*)", plan)
    return {int(step): float(rate) for step, rate in found}


def test_the_schedule_is_that_of_the_run(tmp_path, make_runner):
    schedules = [
        {"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "end": 5},
        {"type": "MultiStepLR", "milestones": [1], "by_epoch": True},
    ]
    rates = rates_in(plan_of(tmp_path, param_scheduler=schedules))
    seen = {}

    class RecordRate(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            seen[runner.iter] = runner.optim_wrapper.param_groups[0]["lr"]

    make_runner(param_scheduler=schedules, custom_hooks=[RecordRate()]).train()
    assert {0, 5, 11} <= rates.keys()
    assert rates == pytest.approx({step: seen[step] for step in rates})


def test_a_run_by_iterations_has_no_epochs(tmp_path):
    plan = plan_of(
        tmp_path,
        train_cfg={"by_epoch": False, "max_iters": 30},
        param_scheduler=[
            {"type": "StepLR", "step_size": 1, "gamma": 0.5},
            {"type": "StepLR", "step_size": 2, "gamma": 0.1, "convert_to_iter_based": True},
        ],
    )
    rates = rates_in(plan)
    assert [rates[7], rates[14], rates[29]] == pytest.approx([0.1, 0.01, 0.001])
    assert "counts epochs, and the run counts iterations" in plan
    assert "length        30 steps; 6 go through the data once" in plan


def test_a_plan_of_a_billion_steps_is_made_at_once(tmp_path):
    plan = plan_of(
        tmp_path,
        train_cfg={"max_epochs": 10**4},
        train_dataloader={"dataset": Unreadable(10**5), "batch_size": 1},
        param_scheduler={"type": "StepLR", "step_size": 6000, "gamma": 0.5},
    )
    assert "length        1000000000 steps" in plan
    assert list(rates_in(plan).values())[-1] == 0.05


@pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")
def test_several_optimizers_and_precision_are_named(tmp_path):
    class Two(Classifier):
        def train_step(self, data, optim_wrapper):
            raise AssertionError(data, optim_wrapper)

    one = {"type": "AmpOptimWrapper", "dtype": "bfloat16", "optimizer": {"type": "SGD", "lr": 0.1}}
    plan = plan_of(
        tmp_path,
        model={"type": Two},
        optim_wrapper={
            "constructor": "MultiOptimWrapperConstructor",
            "layers.0": one,
            "layers.3": {"optimizer": {"type": "NpuFusedSGD", "lr": 0.2, "momentum": 0.9}},
        },
    )
    assert "layers.0: torch.optim.sgd.SGD in AmpOptimWrapper" in plan
    assert "layers.3: mm_npu." in plan
    assert "precision     layers.0: bfloat16, layers.3: float32" in plan


class Reading(torch.optim.SGD):
    """Reads a value in its step, which a model without values has not."""

    @override
    def step(self, closure=None):
        if self.param_groups[0]["params"][0].sum().item() > 0:
            super().step(closure)


@_needs_meta
def test_an_optimizer_that_reads_values_is_said_not_to_be_known(tmp_path):
    plan = plan_of(tmp_path, optim_wrapper={"optimizer": {"type": Reading, "lr": 0.1}})
    assert "What Reading keeps is not known" in plan
    assert "optimizer not known" in plan


@_needs_meta
def test_the_memory_is_that_of_its_parts(tmp_path):
    plan = plan_of(
        tmp_path,
        world_size=4,
        model={"type": Wide},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9}},
    )
    assert (
        "memory        3.00 MiB in each process: model 1.00 MiB; gradients 1.00 MiB; optimizer "
        "1.00 MiB\n" in plan
    )


def test_what_is_wrong_is_told_as_training_would(tmp_path):
    with pytest.raises(ConfigError, match=r"train_cfg: train_dataloader|max_epochs"):
        plan_of(tmp_path, train_cfg={"by_epoch": True})
    with pytest.raises(ConfigError, match=r"val_evaluator: .*needed"):
        plan_of(tmp_path, val_evaluator=[])
    with pytest.raises(ConfigError, match="world_size=0"):
        plan_of(tmp_path, world_size=0)
    with pytest.raises(ConfigError, match=r"^load_from: 'absent\.pth' was given; there is no"):
        plan_of(tmp_path, load_from="absent.pth")


def test_the_command_prints_the_plan_and_ends_with_a_status(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "c.json").write_text(json.dumps({**strict_config(), "compile": False}))
    assert main(["check", "c.json"]) == 0
    text = capsys.readouterr().out
    for line in (
        "model         Net: ",
        "length        12 steps = 2 epochs x 6",
        "precision     bfl",
    ):
        assert line in text
    assert "batch         8 = 4 of a process x 1 process(es) x 2 accumulated" in text
    assert main(["check", "c.json", "--world-size", "2"]) == 0
    assert "batch         16 = " in capsys.readouterr().out
    assert main(["check", "c.json", "--cfg-options", "model.widht=3"]) == 1
    assert "c.json:1: model.widht: unknown argument of Net" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    "cycle",
    [
        {"type": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 0.1},
        {"type": "OneCycleLR", "eta_max": 0.1},
    ],
    ids=["torch", "ours"],
)
def test_a_cycle_that_is_too_short_stays_at_its_end(tmp_path, cycle):
    schedule = {**cycle, "total_steps": 5, "by_epoch": False}
    arguments = runner_arguments(tmp_path, param_scheduler=[schedule])
    with pytest.warns(UserWarning, match=r"ends after total_steps=5, .* Give total_steps=12"):
        make_plan(arguments)
    runner = Runner.from_cfg(arguments)
    with pytest.warns(UserWarning, match=r"ends after total_steps=5, .* Give total_steps=12"):
        runner.train()
    assert runner.iter == 12
    assert runner.optim_wrapper.param_groups[0]["lr"] == pytest.approx(0.1 / 25 / 1e4)


def test_what_a_step_is_is_said_where_batches_accumulate(tmp_path, make_runner):
    cfg = runner_arguments(tmp_path)["optim_wrapper"]
    runner = make_runner(optim_wrapper={**cfg, "accumulative_counts": 3})
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "12 steps in 2 epochs, a step being one batch, 3 to an optimizer step" in log


def test_a_checkpoint_that_is_not_there_is_told_by_check(tmp_path):
    missing = str(tmp_path / "absent.pth")
    with pytest.raises(ConfigError, match=r"^load_from: '.*absent\.pth' was given; there is no"):
        make_plan(runner_arguments(tmp_path, load_from=missing))


class Failing(torch.optim.lr_scheduler.LambdaLR):
    """Fails at its second step."""

    def __init__(self, optimizer):
        super().__init__(optimizer, lambda step: [1.0, 0.5][step])


def test_a_schedule_of_the_users_own_that_fails_is_told_in_one_line(tmp_path):
    schedule = {"type": Failing, "by_epoch": False}
    with pytest.raises(ConfigError, match=r"^param_scheduler: IndexError: .*\(test_plan\.py, line"):
        plan_of(tmp_path, param_scheduler=schedule)
