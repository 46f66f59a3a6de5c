"""A run that is resumed with another length has the schedules of a run of that length."""

from pathlib import Path

import pytest
import torch
from own_loops import OwnIterations
from test_resume_midway import StopAfter, Stream
from test_resume_ranks import Wide, _train
from test_schedules import make, make_optimizer, values_of
from test_several_optimizers import Pair
from toy import NO_VALIDATION, Killed, Scripted, loader_cfg
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.loops import IterBasedTrainLoop
from mm_runner.optim.schedules import replay

EPOCH = 6  # steps
SGD = {"optimizer": {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}}
BY_ITER = {"by_epoch": False}
CONVERTED = {"convert_to_iter_based": True}
WARM_UP = {"type": "LinearLR", "start_factor": 0.1, **BY_ITER, "end": 9}
FAMILIES = {
    "linear": {"type": "LinearLR", "start_factor": 0.1},
    "exponential": {"type": "ExponentialLR", "gamma": 0.9},
    "milestones": {"type": "MultiStepLR", "milestones": [1, 2, 3]},
    "cosine": {"type": "CosineAnnealingLR", "eta_min": 0.001},
    "restarts": {"type": "CosineRestartLR", "periods": [2, 3], "restart_weights": [1, 0.5]},
    "poly": {"type": "PolyLR", "eta_min": 0.001, "power": 2},
    "one-cycle": {"type": "OneCycleLR", "eta_max": 0.5},
    "torch": {"type": "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts", "T_0": 3},
    "momentum": {"type": "CosineAnnealingMomentum", "eta_min": 0.5},
    "weight-decay": {
        "type": "LinearParamScheduler",
        "param_name": "weight_decay",
        "start_factor": 0.1,
    },
}
PLATEAU = {
    "type": "ReduceOnPlateauLR",
    "monitor": "accuracy",
    "rule": "greater",
    "patience": 0,
    "factor": 0.5,
}
CASES = {
    **{name: [FAMILIES[name]] for name in ("cosine", "torch")},
    "one-cycle-by-iteration": [{**FAMILIES["one-cycle"], **BY_ITER}],
    "converted": [{**FAMILIES["milestones"], **CONVERTED}],
    "after-a-warm-up": [WARM_UP, {"type": "CosineAnnealingLR", "begin": 1}],
    "beside-a-warm-up": [{**WARM_UP, "end": 15}, FAMILIES["cosine"], FAMILIES["exponential"]],
    "restarts-beside-others": [
        WARM_UP,
        {**FAMILIES["restarts"], **BY_ITER, "periods": [7, 9], "eta_min": 0.01},
        FAMILIES["exponential"],
    ],
    "several-settings": [FAMILIES["poly"], FAMILIES["momentum"], FAMILIES["weight-decay"]],
}


class Settings(Hook):
    """Keeps what schedules change, of every training step."""

    def __init__(self):
        self.seen = []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        wrappers = runner.optim_wrapper
        wrappers = wrappers.values() if hasattr(wrappers, "values") else [wrappers]
        self.seen.append(
            [
                [float(group.get(key, 0)) for key in ("lr", "momentum", "weight_decay")]
                for wrapper in wrappers
                for group in wrapper.param_groups
            ]
        )


@pytest.fixture
def settings_of(make_runner, tmp_path):
    """``settings_of(length, ...)`` trains in a directory and returns every step's settings."""

    def train(length, work_dir="run", *, resume=False, stop=None, by_epoch=True, **changes):
        seen = Settings()
        unit = "max_epochs" if by_epoch else "max_iters"
        runner = make_runner(
            **{"optim_wrapper": SGD, **NO_VALIDATION, **changes},
            work_dir=tmp_path / work_dir,
            train_cfg={"by_epoch": by_epoch, unit: length},
            custom_hooks=[seen, *([StopAfter(stop)] if stop else [])],
            resume=resume,
        )
        if stop:
            with pytest.raises(Killed):
                runner.train()
        else:
            runner.train()
        return seen.seen

    return train


@pytest.mark.parametrize(
    ("name", "old", "stop", "new"),
    [
        *((name, 2, 8, 4) for name in CASES),
        ("cosine", 2, None, 4),
        ("cosine", 4, 8, 2),
    ],
    ids=[
        *(f"{name}-in-the-middle" for name in CASES),
        "at-the-end",
        "shorter",
    ],
)
def test_a_resumed_run_has_the_schedules_of_its_length(settings_of, name, old, stop, new):
    schedules = {"param_scheduler": CASES[name]}
    whole = settings_of(new, "whole", **schedules)
    done = settings_of(old, stop=stop, **schedules)
    resumed = settings_of(new, resume=True, **schedules)
    assert len(resumed) == EPOCH * new - len(done) > 0
    assert resumed == whole[len(done) :]


@pytest.mark.parametrize("stop", [None, 5], ids=["at-the-end", "in-the-middle"])
def test_a_run_by_iterations_has_them_too(settings_of, stop):
    changes = {"param_scheduler": [WARM_UP, {**FAMILIES["poly"], **BY_ITER}], "by_epoch": False}
    whole = settings_of(15, "whole", **changes)
    done = settings_of(8, stop=stop, **changes)
    assert settings_of(15, resume=True, **changes) == whole[len(done) :]


@pytest.mark.parametrize("begin", [0, 4])
def test_so_has_one_of_twice_the_steps_of_half_the_size(settings_of, begin):
    schedules = {"param_scheduler": {**FAMILIES["poly"], **BY_ITER, "begin": begin}}
    changes = {**schedules, "by_epoch": False, "train_dataloader": loader_cfg(batch_size=2)}
    whole = settings_of(16, "whole", **changes)
    done = settings_of(8, stop=6, **schedules, by_epoch=False)
    assert settings_of(16, resume=True, **changes) == whole[len(done) :]


@pytest.mark.parametrize("stop", [None, 5], ids=["at-the-end", "in-the-middle"])
def test_so_has_one_whose_data_have_no_length(settings_of, stop):
    changes = {
        "param_scheduler": {**FAMILIES["poly"], **BY_ITER},
        "train_dataloader": {**loader_cfg(), "dataset": {"type": Stream}},
        "by_epoch": False,
    }
    whole = settings_of(15, "whole", **changes)
    done = settings_of(8, stop=stop, **changes)
    assert settings_of(15, resume=True, **changes) == whole[len(done) :]


def test_each_of_several_groups_and_optimizers_has_its_own(settings_of):
    changes = {
        "model": {"type": Pair},
        "optim_wrapper": {
            "constructor": "MultiOptimWrapperConstructor",
            "fast": {**SGD, "paramwise_cfg": {"bias_lr_mult": 2.0}},
            "slow": {"optimizer": {"type": "AdamW", "lr": 0.01}},
        },
        "param_scheduler": {"fast": CASES["restarts-beside-others"], "slow": FAMILIES["poly"]},
    }
    whole = settings_of(4, "whole", **changes)
    assert len(whole[0]) == 3
    settings_of(2, **changes)
    assert settings_of(4, resume=True, **changes) == whole[12:]


@pytest.mark.parametrize("loop", [IterBasedTrainLoop, OwnIterations])
def test_a_metric_is_followed_in_a_longer_run_by_iterations(make_runner, loop):
    def rate_after(length, values, **resume):
        runner = make_runner(
            train_cfg={"type": loop, "max_iters": length, "val_interval": 3},
            optim_wrapper=SGD,
            param_scheduler=PLATEAU,
            val_evaluator={"type": Scripted, "values": values},
            **resume,
        )
        runner.train()
        return runner.optim_wrapper.param_groups[0]["lr"]

    assert rate_after(6, [0.8, 0.7]) == 0.05
    # The validation after step 6 is in the checkpoint, also in that of a run without a step.
    assert rate_after(6, [], resume=True) == 0.05
    assert rate_after(12, [0.6, 0.5], resume=True) == 0.0125


def test_what_is_done_is_said_once(settings_of, capsys):
    schedules = {"param_scheduler": FAMILIES["linear"]}
    settings_of(2, **schedules)
    settings_of(4, resume=True, **schedules)
    said = (
        "param_scheduler acts from 0 to 4 now, and did from 0 to 2: schedules continue as if "
        "that had been so from the start (lr 0.1 -> 0.07)."
    )
    assert capsys.readouterr().out.count(said) == 1


@pytest.mark.parametrize("length", [4, 2], ids=["own-end", "same-length"])
def test_a_window_that_is_the_same_is_not_touched(settings_of, tmp_path, capsys, length):
    schedules = {"param_scheduler": {**FAMILIES["poly"], **({"end": 2} if length == 4 else {})}}
    settings_of(2, stop=8, **schedules)
    path = tmp_path / "run" / "iter_8.pth"
    checkpoint = load_checkpoint_file(path)
    checkpoint["optimizer"]["param_groups"][0]["lr"] = 0.0625  # by hand
    save_checkpoint_file(checkpoint, path)
    resumed = settings_of(length, resume=True, **schedules)
    assert [step[0][0] for step in resumed[:4]] == [0.0625] * 4
    assert "from the start (" not in capsys.readouterr().out


def test_an_end_of_its_own_that_was_changed_is_named(settings_of, capsys):
    cfg = FAMILIES["linear"]
    whole = settings_of(5, "whole", param_scheduler={**cfg, "end": 4})
    settings_of(2, param_scheduler={**cfg, "end": 3})
    resumed = settings_of(5, resume=True, param_scheduler={**cfg, "end": 4})
    assert resumed == whole[12:]
    said = "param_scheduler acts from 0 to 4 now, and did from 0 to 3: "
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("begin", [0, 4])
def test_epochs_of_another_length_alone_are_no_other_run(settings_of, capsys, begin):
    schedules = {"param_scheduler": {**FAMILIES["poly"], **BY_ITER, "begin": begin}}
    done = settings_of(4, stop=6, **schedules)
    loader = loader_cfg(batch_size=8)
    resumed = settings_of(4, resume=True, train_dataloader=loader, **schedules)
    assert resumed[0][0][0] < done[-1][0][0]
    assert "from the start (" not in capsys.readouterr().out


@pytest.mark.parametrize("epoch_length", [6, None], ids=str)
def test_steps_that_were_held_are_not_made_up_for(epoch_length):
    optimizer = make_optimizer()
    by_epoch = make(optimizer, **FAMILIES["exponential"])
    by_iter = make(optimizer, **FAMILIES["cosine"], **BY_ITER)
    for step in range(12):
        if step >= 2:  # the first two overflowed
            by_iter.step()
        if step % 6 == 5:
            by_epoch.step()
    reached = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 9.0
    replay([by_epoch, by_iter], 12, epoch_length)
    assert [group["lr"] for group in optimizer.param_groups] == reached
    assert by_epoch.state_dict()["count"] == 2
    assert by_iter.state_dict()["count"] == 10


def test_a_learning_rate_that_is_a_tensor_is_changed_in_place():
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
        pytest.skip("tensor learning rates in every scheduler need torch 2.4")
    rate = torch.tensor(0.3)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=rate)
    schedules = [make(optimizer, **FAMILIES["poly"]), make(optimizer, **FAMILIES["exponential"])]
    expected = values_of(optimizer, *schedules, steps=9)
    kept = optimizer.param_groups[0]["lr"]
    rate_now = float(kept)
    replay(schedules, 0, None)
    assert optimizer.param_groups[0]["lr"] is kept
    assert float(kept) == rate_now != expected[0]


def _three_ranks(rank, work_dir):
    del rank

    def train(name, num_epochs, **changes):
        seen = Settings()
        _train(
            Path(work_dir) / name,
            [seen],
            model={"type": Wide},
            optim_wrapper=SGD,
            param_scheduler=CASES["after-a-warm-up"],
            train_cfg={"max_epochs": num_epochs},
            **changes,
        )
        return seen.seen

    checkpoint = {"default_hooks": {"logger": None}}
    whole = train("whole", 4)
    done = train("parts", 2, **checkpoint)
    # It takes a step first whose outcome it discards, and restores the optimizer once more.
    assert train("parts", 4, resume=True, **checkpoint) == whole[len(done) :]


def test_so_has_one_that_rehearses_a_step(run_ranks, tmp_path):
    run_ranks(_three_ranks, 3, str(tmp_path))
