from pathlib import Path

import pytest
import torch
from test_resume import COSINE, DROPOUT, MOMENTUM
from toy import Blobs, Classifier, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.tools import verify_resume


def cfg_of(tmp_path, **changes):
    arguments = {
        "model": DROPOUT,
        "optim_wrapper": {"optimizer": MOMENTUM},
        "param_scheduler": COSINE,
        "train_dataloader": loader_cfg(dataset=Blobs(noise=0.5)),
        **changes,
    }
    return runner_arguments(tmp_path / "unused", **arguments)


def test_an_ordinary_configuration_resumes_exactly(tmp_path):
    cfg = cfg_of(tmp_path)
    before = torch.get_rng_state()
    report = verify_resume(cfg, work_dir=tmp_path / "runs")
    assert report.equal, str(report)
    assert (report.at_step, report.steps) == (3, 8)
    assert "Resuming is exact: stopped after step 3" in str(report)
    assert torch.equal(torch.get_rng_state(), before)
    assert not (tmp_path / "unused").exists()
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"whole", "resumed"}


def test_the_stop_comes_when_no_gradients_are_accumulated_and_the_rest_is_left_out(tmp_path):
    wrapper = {"optimizer": MOMENTUM, "accumulative_counts": 3}
    report = verify_resume(cfg_of(tmp_path, optim_wrapper=wrapper), at_step=4)
    assert report.equal, str(report)
    assert (report.at_step, report.steps) == (6, 9)


class Forgetful(Classifier):
    """Its loss depends on a plain attribute."""

    num_calls = 0

    def forward(self, inputs, labels, mode="tensor"):
        result = super().forward(inputs, labels, mode)
        if mode == "loss":
            self.num_calls += 1
            result["loss"] = result["loss"] * self.num_calls
        return result


class OwnRates(Hook):
    """Halves the learning rate every other step, by a count that no checkpoint has."""

    priority = "LOW"
    count = 0

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.count += 1
        if self.count == 5:
            for group in runner.optim_wrapper.param_groups:
                group["lr"] *= 0.5


class OwnOrder(torch.utils.data.Sampler):
    """Another order each time it is asked, whatever the epoch."""

    times = 0

    def __init__(self, dataset, seed):  # noqa: ARG002 - the loader gives it
        self.size = len(dataset)

    def __iter__(self):
        OwnOrder.times += 1
        generator = torch.Generator().manual_seed(OwnOrder.times)
        return iter(torch.randperm(self.size, generator=generator).tolist())

    def __len__(self):
        return self.size


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"model": {"type": Forgetful}}, "outputs"),
        ({"custom_hooks": [OwnRates()]}, "learning rates"),
        ({"train_dataloader": loader_cfg(sampler={"type": OwnOrder})}, "data"),
    ],
    ids=["model", "hook", "sampler"],
)
def test_what_is_not_exact_is_named(tmp_path, changes, what):
    report = verify_resume(cfg_of(tmp_path, **changes), at_step=3)
    assert not report.equal
    assert f": {what}: " in report.differences[0]
    lines = str(report).splitlines()
    assert lines[0].startswith("Resuming is not exact: stopped after step 3")
    assert lines[1] == f"  {report.differences[0]}"
    assert "plain attributes" in lines[-1]


class ForgetsMomentum(Hook):
    """Damages the last optimizer state that is saved, of the resumed run alone."""

    @override
    def before_save_checkpoint(self, runner, checkpoint):
        if runner.is_resuming:
            checkpoint["optimizer"]["state"][0]["momentum_buffer"] = torch.zeros(8, 4)


def test_a_difference_in_the_state_at_the_end_is_named_by_parameter(tmp_path):
    report = verify_resume(cfg_of(tmp_path, custom_hooks=[ForgetsMomentum()]))
    (difference,) = report.differences
    assert difference.startswith("at the end: state: optimizer: state: 0: momentum_buffer: ")
    assert "of 32 values" in difference


def test_a_stop_that_training_does_not_come_to_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"at_step=12 was given; the training has 12 steps"):
        verify_resume(cfg_of(tmp_path), at_step=12)
    with pytest.raises(ConfigError, match=r"at_step=0 was given"):
        verify_resume(cfg_of(tmp_path), at_step=0)
    with pytest.raises(ConfigError, match="cannot be copied"):
        verify_resume(cfg_of(tmp_path, default_scope=(line for line in ())))
    assert not list(Path(tmp_path).glob("*/whole"))


def test_a_training_that_ends_before_the_last_step_is_told(tmp_path):
    cfg = cfg_of(tmp_path, custom_hooks=[{"type": "TimeLimitHook", "max_time": 0.001}])
    with pytest.raises(ConfigError, match=r"training ended after step \d+ .*before step 8.* hook"):
        verify_resume(cfg)
