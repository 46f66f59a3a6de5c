"""``mm-runner check``: the plan of a run that is not begun."""

import json
import sys

import pytest
import torch
from strict_task import strict_config
from torch import nn
from toy import Blobs, Classifier, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.cli import main
from mm_runner.model import BaseModel, ExponentialMovingAverage
from mm_runner.registry import PARAM_SCHEDULERS
from mm_runner.tools import make_plan, plan_as_text

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
    parameters = sum(p.numel() for p in Classifier().parameters())
    assert plan["model"]["name"] == "Classifier"
    assert plan["model"]["parameters"] == plan["model"]["trained"] == parameters
    assert plan["model"]["bytes"] == {"float32": 4 * parameters}
    (optimizer,) = plan["optimizers"]
    assert optimizer["optimizer"] == "AdamW"
    assert sorted(group["weight_decay"] for group in optimizer["groups"]) == [0.0, 0.5]
    assert sum(group["parameters"] for group in optimizer["groups"]) == parameters
    assert {group["lr"] for group in optimizer["groups"]} == {0.2}
    assert plan["batch"] == {"per_process": 4, "world_size": 2, "effective": {"": 24}}
    assert plan["length"] == {"epochs": 2, "steps_per_epoch": 4, "steps": 8}
    assert plan["memory"]["gradients"] == {"float32": 4 * parameters}
    # Two averages of each parameter, and torch's count of steps.
    assert 0 <= plan["memory"]["optimizer_state"]["float32"] - 8 * parameters <= 4 * 4
    assert plan["acceleration"]["wrapper"] == "MMDistributedDataParallel"
    assert json.loads(json.dumps(plan)) == plan
    assert not (tmp_path / "run").exists()


@_needs_meta
def test_a_model_larger_than_memory_is_planned(tmp_path):
    plan = plan_of(tmp_path, model={"type": Huge}, optim_wrapper={"optimizer": {"type": "Adam"}})
    assert plan["memory"]["optimizer_state"]["float32"] >= 8 * 10**11
    assert not plan["notes"]


@_needs_meta
def test_a_model_that_needs_values_is_built_with_them(tmp_path):
    plan = plan_of(tmp_path, model={"type": Lazy})
    assert "built with its values" in plan["notes"][0]


def test_the_schedule_is_that_of_the_run(tmp_path, make_runner):
    schedules = [
        {"type": "LinearLR", "start_factor": 0.1, "by_epoch": False, "end": 5},
        {"type": "MultiStepLR", "milestones": [1], "by_epoch": True},
    ]
    plan = plan_of(tmp_path, param_scheduler=schedules)
    seen = {}
    runner = make_runner(param_scheduler=schedules)
    call_hook = runner.call_hook

    def note(stage, **arguments):
        if stage == "before_train_iter":
            seen[runner.iter] = runner.optim_wrapper.param_groups[0]["lr"]
        call_hook(stage, **arguments)

    runner.call_hook = note
    runner.train()
    assert {0, 5, 11} <= {point["step"] for point in plan["schedule"]}
    for point in plan["schedule"]:
        assert point["lr"][""] == pytest.approx(seen[point["step"]])
        assert point["epoch"] == point["step"] // 6


def test_a_run_by_iterations_has_no_epochs(tmp_path):
    plan = plan_of(
        tmp_path,
        train_cfg={"by_epoch": False, "max_iters": 30},
        param_scheduler=[
            {"type": "StepLR", "step_size": 1, "gamma": 0.5},
            {"type": "StepLR", "step_size": 2, "gamma": 0.1, "convert_to_iter_based": True},
        ],
    )
    assert plan["length"] == {"epochs": None, "steps_per_epoch": 6, "steps": 30}
    rates = {point["step"]: point["lr"][""] for point in plan["schedule"]}
    assert rates[7] == 0.1
    assert rates[14] == pytest.approx(0.01)
    assert rates[29] == pytest.approx(0.001)
    assert "counts epochs, and the run counts iterations" in plan["notes"][-1]
    text = plan_as_text(plan)
    assert "length        30 steps; 6 go through the data once" in text
    assert "schedule      step 29: lr 0.001" in text


def test_a_plan_of_a_billion_steps_is_made_at_once(tmp_path):
    for cfg, rate in ((None, 0.1), ({"type": "StepLR", "step_size": 6000, "gamma": 0.5}, 0.05)):
        plan = plan_of(
            tmp_path,
            train_cfg={"max_epochs": 10**4},
            train_dataloader={"dataset": Unreadable(10**5), "batch_size": 1},
            param_scheduler=cfg,
        )
        assert plan["length"]["steps"] == 10**9
        assert plan["schedule"][-1]["lr"] == {"": rate}


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
    assert [one["name"] for one in plan["optimizers"]] == ["layers.0", "layers.3"]
    assert plan["acceleration"]["precision"] == {"layers.0": "bfloat16", "layers.3": "float32"}
    assert plan["acceleration"]["optimizer"]["layers.3"].startswith("mm_npu.")
    text = plan_as_text(plan)
    assert "layers.0: torch.optim.sgd.SGD in AmpOptimWrapper" in text


@_needs_meta
@pytest.mark.parametrize("name", ["AdamW", "RMSprop", "SGD"])
def test_the_state_of_the_optimizer_is_as_large_as_it_will_be(tmp_path, name):
    options = {"lr": 0.1, **({"momentum": 0.9} if name == "SGD" else {})}
    cfg = {"optimizer": {"type": name, **options}}
    runner = Runner.from_cfg(runner_arguments(tmp_path / "run", optim_wrapper=cfg))
    runner.train()
    states = runner.optim_wrapper.optimizer.state.values()
    kept = [one for state in states for one in state.values() if isinstance(one, torch.Tensor)]
    size = sum(one.numel() * one.element_size() for one in kept)
    assert plan_of(tmp_path, optim_wrapper=cfg)["memory"]["optimizer_state"] == {"float32": size}


class Reading(torch.optim.SGD):
    """Reads a value in its step, which a model without values has not."""

    @override
    def step(self, closure=None):
        if self.param_groups[0]["params"][0].sum().item() > 0:
            super().step(closure)


@_needs_meta
def test_an_optimizer_that_reads_values_is_said_not_to_be_known(tmp_path):
    plan = plan_of(tmp_path, optim_wrapper={"optimizer": {"type": Reading, "lr": 0.1}})
    assert plan["memory"]["optimizer_state"] is None
    assert "What Reading keeps is not known" in plan["notes"][-1]
    assert "optimizer not known" in plan_as_text(plan)


class Batched(Classifier):
    """With a buffer of numbers, one of counts, a frozen part and one with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(2, 2).requires_grad_(requires_grad=False)
        self.words = nn.Embedding(5, 3, sparse=True)
        self.scales = nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))


_TRAINED = 67 + 16 + 15  # in float32


def test_an_average_is_counted_as_it_is_kept(tmp_path):
    plan = plan_of(tmp_path, model={"type": Batched}, custom_hooks=[{"type": "EMAHook"}])
    expected = {"float32": 4 * (_TRAINED + 6)}
    assert plan["memory"]["averages"] == expected
    average = ExponentialMovingAverage(Batched())
    average.update()
    sizes = [one.numel() * one.element_size() for one in average.full_tensors().values()]
    assert sum(sizes) == expected["float32"]
    text = plan_as_text(plan)
    assert "; average 0.00 MiB (float32" in text
    assert "once more while their average is validated" in text
    without = plan_of(tmp_path, model={"type": Batched})
    assert without["memory"]["averages"] == without["memory"]["ddp_buckets"] == {}
    assert "average" not in plan_as_text(without)


_BUCKETS = {"float32": 4 * _TRAINED, "bfloat16": 12}


@pytest.mark.parametrize(
    ("world_size", "wrapper", "expected"),
    [
        (1, None, {}),
        (4, None, _BUCKETS),
        (4, {"type": "MMSeparateDistributedDataParallel"}, _BUCKETS),
        (
            4,
            {"type": nn.parallel.DistributedDataParallel, "gradient_as_bucket_view": False},
            _BUCKETS,
        ),
        (4, {"gradient_as_bucket_view": True}, {}),
        (4, {"type": "MMFullyShardedDataParallel"}, {}),
    ],
)
def test_the_buckets_of_several_processes_are_counted(tmp_path, world_size, wrapper, expected):
    plan = plan_of(
        tmp_path, world_size=world_size, model={"type": Batched}, model_wrapper_cfg=wrapper
    )
    assert plan["memory"]["ddp_buckets"] == expected
    text = plan_as_text(plan)
    assert ("; DDP buckets 0.00 MiB (bfloat16, float32)" in text) is bool(expected)


def test_the_sum_of_memory_is_that_of_its_parts(tmp_path):
    plan = plan_of(tmp_path, world_size=4, model={"type": Wide}, custom_hooks=[{"type": "EMAHook"}])
    mebibytes = {"model": 1, "gradients": 1, "optimizer": 0, "average": 1, "DDP buckets": 1}
    parts = "; ".join(
        f"{name} {size}.00 MiB ({'float32' if size else 'nothing'})"
        for name, size in mebibytes.items()
    )
    assert f"memory        4.00 MiB in each process: {parts}\n" in plan_as_text(plan)


def test_what_is_wrong_is_told_as_training_would(tmp_path):
    with pytest.raises(ConfigError, match=r"train_cfg: train_dataloader|max_epochs"):
        plan_of(tmp_path, train_cfg={"by_epoch": True})
    with pytest.raises(ConfigError, match=r"val_evaluator: .*needed"):
        plan_of(tmp_path, val_evaluator=[])
    with pytest.raises(ConfigError, match="world_size=0"):
        plan_of(tmp_path, world_size=0)


def test_the_command_prints_text_or_json_and_ends_with_a_status(tmp_path, monkeypatch, capsys):
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
    assert main(["check", "c.json", "--json", "--world-size", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"]["effective"] == {"": 16}
    assert main(["check", "c.json", "--cfg-options", "model.widht=3"]) == 1
    assert "c.json:1: model.widht: unknown argument of Net" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("cycle", [{"max_lr": 0.1}, {"eta_max": 0.1}], ids=["torch", "ours"])
def test_a_cycle_that_is_too_short_stays_at_its_end(tmp_path, cycle):
    schedule = {"type": "OneCycleLR", **cycle, "total_steps": 5, "by_epoch": False}
    arguments = runner_arguments(tmp_path, param_scheduler=[schedule])
    with pytest.warns(UserWarning, match=r"ends after total_steps=5, .* Give total_steps=12"):
        make_plan(arguments)
    runner = Runner.from_cfg(arguments)
    with pytest.warns(UserWarning, match=r"ends after total_steps=5, .* Give total_steps=12"):
        runner.train()
    assert runner.iter == 12
    assert runner.optim_wrapper.param_groups[0]["lr"] == pytest.approx(0.1 / 25 / 1e4)


def test_a_schedule_that_fails_is_told_by_its_path(tmp_path, monkeypatch):
    class Ending(torch.optim.lr_scheduler.StepLR):
        def step(self, epoch=None):
            if self.last_epoch == 3:
                raise ValueError("no further")
            super().step(epoch)

    monkeypatch.setitem(PARAM_SCHEDULERS._registered, "Ending", Ending)
    schedule = {"type": "Ending", "step_size": 1, "by_epoch": False}
    with pytest.raises(ConfigError, match=r"^param_scheduler: it fails .*: ValueError: no further"):
        make_plan(runner_arguments(tmp_path, param_scheduler=schedule))


def test_what_a_step_is_is_said_where_batches_accumulate(tmp_path, make_runner):
    cfg = runner_arguments(tmp_path)["optim_wrapper"]
    runner = make_runner(optim_wrapper={**cfg, "accumulative_counts": 3})
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "12 steps in 2 epochs, a step being one batch, 3 to an optimizer step" in log
    notes = make_plan(runner_arguments(tmp_path, optim_wrapper={**cfg, "accumulative_counts": 3}))[
        "notes"
    ]
    assert any("steps once in 3 steps of the run, which are batches" in note for note in notes)


def test_a_checkpoint_that_is_not_there_is_told_by_check(tmp_path):
    missing = str(tmp_path / "absent.pth")
    with pytest.raises(ConfigError, match=r"^load_from: '.*absent\.pth' was given; there is no"):
        make_plan(runner_arguments(tmp_path, load_from=missing))
