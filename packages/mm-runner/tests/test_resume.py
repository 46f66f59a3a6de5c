import json

import pytest
import torch
from toy import (
    CPU_LOW_PRECISION,
    Blobs,
    Classifier,
    Killed,
    RecordRates,
    StopBeforeEpoch,
    loader_cfg,
)
from typing_extensions import override

from mm_runner import CheckpointError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.evaluator import BaseMetric
from mm_runner.hooks import Hook

DROPOUT = {"type": Classifier, "dropout": 0.3}
COSINE = {"type": "CosineAnnealingLR", "by_epoch": False, "end": 24}
MOMENTUM = {"type": "SGD", "lr": 0.1, "momentum": 0.9}


def scalars_of(work_dir):
    """The losses and metrics of all runs in ``work_dir``, in order, without the times.

    A run that resumes before a validation repeats it: each record once.
    """
    lines = [
        json.loads(line)
        for path in sorted(work_dir.glob("*/scalars.jsonl"))
        for line in path.read_text().splitlines()
    ]
    records = [{k: v for k, v in line.items() if not k.endswith("time")} for line in lines]
    return [one for index, one in enumerate(records) if one not in records[:index]]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optim_wrapper": {"optimizer": MOMENTUM, "accumulative_counts": 4}},
        {"train_dataloader": loader_cfg(dataset=Blobs(noise=0.5), num_workers=2)},
    ],
    ids=["plain", "accumulating", "augmented-by-workers"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_by_bit(make_runner, tmp_path, changes):
    arguments = {
        "model": DROPOUT,
        "optim_wrapper": {"optimizer": MOMENTUM},
        "param_scheduler": COSINE,
        "train_cfg": {"max_epochs": 4},
        "log_processor": {"window_size": 6},  # the means of a line reach back no further
        **changes,
    }
    rates = RecordRates(), RecordRates()
    whole = make_runner(work_dir=tmp_path / "whole", custom_hooks=[rates[0]], **arguments)
    whole.train()

    parts = tmp_path / "parts"
    killed = make_runner(work_dir=parts, custom_hooks=[rates[1], StopBeforeEpoch(2)], **arguments)
    with pytest.raises(Killed):
        killed.train()
    torch.manual_seed(12345)  # a new process knows nothing of the old one's generators
    resumed = make_runner(work_dir=parts, resume=True, custom_hooks=[rates[1]], **arguments)
    resumed.train()

    assert (resumed.epoch, resumed.iter) == (4, 24)
    expected, got = whole.model.state_dict(), resumed.model.state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)
    assert rates[1].rates == rates[0].rates
    assert scalars_of(parts) == scalars_of(tmp_path / "whole")
    states = [runner.optim_wrapper.state_dict()["state"] for runner in (whole, resumed)]
    for index, state in states[0].items():
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(states[1][index][key]), torch.as_tensor(value))


def test_resume_without_a_checkpoint_trains_from_the_start(make_runner):
    runner = make_runner(resume=True)
    runner.train()
    assert runner.epoch == 2


def test_resume_takes_the_file_that_load_from_names(make_runner, tmp_path):
    first = make_runner()
    first.train()
    runner = make_runner(
        work_dir=tmp_path / "other",
        load_from=str(first.work_dir / "epoch_1.pth"),
        resume=True,
        custom_hooks=[StopBeforeEpoch(1)],
    )
    with pytest.raises(Killed):
        runner.train()
    assert (runner.epoch, runner.iter) == (1, 6)


def test_resume_takes_the_checkpoints_seed_and_says_so(make_runner):
    make_runner(randomness={"seed": 5}).train()
    runner = make_runner(randomness={"seed": 6}, resume=True)
    runner.train()
    assert runner.seed == 5
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "randomness.seed is 6, the checkpoint's 5" in log
    assert make_runner(randomness=None, resume=True).train() is not None


@pytest.mark.parametrize(
    ("optim_wrapper", "message"),
    [
        (
            {"optimizer": {"type": "AdamW", "lr": 0.1}},
            r"does not fit: (it has .*, momentum, .*, and AdamW has betas, eps|'step')\. Build",
        ),
        (
            {"optimizer": {"type": "SGD", "lr": 0.1}, "paramwise_cfg": {"bias_lr_mult": 2.0}},
            r"optimizer does not fit: loaded state dict has a different number .*\. Build the opt",
        ),
    ],
    ids=["other-kind", "other-groups"],
)
def test_resuming_with_another_optimizer_says_what_does_not_fit(
    make_runner, optim_wrapper, message
):
    make_runner().train()
    runner = make_runner(resume=True, optim_wrapper=optim_wrapper, train_cfg={"max_epochs": 3})
    with pytest.raises(CheckpointError, match=message):
        runner.train()


def test_resume_from_weights_alone_says_what_starts_anew(make_runner):
    hooks = {"checkpoint": {"save_best": "accuracy"}}
    first = make_runner(default_hooks=hooks)
    first.train()
    runner = make_runner(
        resume=True,
        load_from=str(first.work_dir / "best_accuracy.pth"),
        train_cfg={"max_epochs": 3},
        param_scheduler={"type": "StepLR", "step_size": 9},
    )
    runner.train()
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "has no optimizer state" in log
    assert "has 0 parameter schedulers, this run 1" in log


_READ_WITHOUT_US = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("mm_"):
            raise ImportError(name)

sys.meta_path.insert(0, Refuse())
import torch, warnings
warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # torch 2.0, of itself
checkpoint = torch.load(sys.argv[1], weights_only=True)
print(sorted(checkpoint))
print(sorted(checkpoint["state_dict"]))
data = checkpoint["data"][0]["position"]
print(checkpoint["meta"]["epoch"], checkpoint["meta"]["iter"], data["epoch"], data["batch"])
assert not any(name.startswith("mm_") for name in sys.modules)
"""


@pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="the safe loader of torch 1.13 knows no float"
)
def test_a_checkpoint_loads_safely_where_none_of_our_packages_is(make_runner, run_script):
    runner = make_runner(
        optim_wrapper={
            "type": "AmpOptimWrapper",
            "dtype": CPU_LOW_PRECISION,
            "optimizer": {"type": "AdamW", "lr": 0.01},
        },
        param_scheduler=[COSINE, {"type": "MultiStepLR", "milestones": [1]}],
        default_hooks={"checkpoint": {"save_best": "accuracy", "interval": 1}},
    )
    runner.train()
    result = run_script(_READ_WITHOUT_US, runner.work_dir / "epoch_2.pth")
    assert result.returncode == 0, result.stderr
    keys, names, position = result.stdout.splitlines()
    assert keys == str(
        sorted(
            [
                "checkpoint_hook",
                "data",
                "message_hub",
                "meta",
                "optimizer",
                "param_schedulers",
                "rng",
                "state_dict",
            ]
        )
    )
    assert names == str(sorted(Classifier().state_dict()))
    assert position == "2 12 2 0"
    checkpoint = load_checkpoint_file(runner.work_dir / "epoch_2.pth")
    assert ("loss_scaler" in checkpoint["optimizer"]) == (CPU_LOW_PRECISION == "float16")
    assert checkpoint["meta"]["cfg"] == runner.logs.config_text
    assert set(checkpoint["meta"]["versions"]) == {
        "torch",
        "mm-runner",
        "mm-dist",
        "mm-amp",
        "mm-compile",
        "mm-npu",
    }


class _StopBeforeValidation(Hook):
    @override
    def before_val(self, runner):
        if runner.epoch == 2:
            raise Killed


class _Draw(BaseMetric):
    def process(self, *_):
        self.results.append(torch.rand(1).item())

    def compute_metrics(self, results):
        return {"draw": sum(results)}


def _validations(work_dir):
    return [(one["epoch"], one["draw"]) for one in scalars_of(work_dir) if one["mode"] == "val"]


def test_a_validation_that_the_stop_cut_off_is_run_once_and_first(make_runner, tmp_path):
    """It draws the random numbers that it would have drawn without the stop."""
    short = {"train_cfg": {"max_epochs": 2}, "val_evaluator": _Draw(), "model": DROPOUT}
    make_runner(work_dir=tmp_path / "whole", **short).train()
    expected = _validations(tmp_path / "whole")
    with pytest.raises(Killed):
        make_runner(custom_hooks=[_StopBeforeValidation()], **short).train()
    assert _validations(tmp_path / "run") == expected[:1]
    make_runner(resume=True, **short).train()
    assert _validations(tmp_path / "run") == expected


def test_a_validation_draws_no_random_number_of_the_training(make_runner, tmp_path):
    dataset = loader_cfg()["dataset"]
    ready = torch.utils.data.DataLoader(dataset, batch_size=4)  # draws a seed for its workers
    arguments = {"model": DROPOUT, "train_cfg": {"max_epochs": 3}, "val_dataloader": ready}
    whole = make_runner(work_dir=tmp_path / "whole", **arguments)
    whole.train()
    with pytest.raises(Killed):
        make_runner(custom_hooks=[StopBeforeEpoch(2)], **arguments).train()
    resumed = make_runner(resume=True, **arguments)
    resumed.train()
    expected, got = whole.model.state_dict(), resumed.model.state_dict()
    assert all(torch.equal(got[name], expected[name]) for name in expected)
