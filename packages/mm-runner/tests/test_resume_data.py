"""Resuming with the data begun anew, because they are others or to be seen otherwise."""

import re

import pytest
from test_resume import COSINE, DROPOUT, MOMENTUM
from test_resume_midway import Seen, StopAfter, assert_alike, state_of
from toy import NO_VALIDATION, Blobs, Killed, StopBeforeEpoch, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.tools import make_plan, verify_resume

EPOCHS = {"max_epochs": 3}
ITERATIONS = {"by_epoch": False, "max_iters": 18}


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


@pytest.fixture
def train(make_runner):
    """``train(train_cfg, *hooks, **changes)`` trains, up to a StopAfter, and returns the Runner."""

    def train(train_cfg, *hooks, resume=True, **changes):
        arguments = {
            "model": DROPOUT,
            "optim_wrapper": {"optimizer": MOMENTUM},
            "param_scheduler": COSINE,
            "default_hooks": {"checkpoint": None},
            **NO_VALIDATION,
            **changes,
        }
        runner = make_runner(
            train_cfg=train_cfg, custom_hooks=list(hooks), resume=resume, **arguments
        )
        if any(isinstance(hook, StopAfter) for hook in hooks):
            with pytest.raises(Killed):
                runner.train()
        else:
            runner.train()
        return runner

    return train


def labels(seen):
    return [batch for _, batch, _ in seen.steps]


def drawn_in(seen, steps):
    return sorted(int(one) for batch in labels(seen)[:steps] for one in re.findall(r"\d+", batch))


ANEW = {"cfg": {"resume_data": False}}


@pytest.mark.parametrize("workers", [0, 1], ids=["in-process", "worker"])
def test_the_epoch_under_way_is_begun_anew_in_another_order(train, workers):
    loader = loader_cfg(dataset=Blobs(24, noise=0.5), num_workers=workers)
    first, second = Seen(), Seen()
    stopped = train(EPOCHS, first, StopAfter(8), train_dataloader=loader)
    rates = [group["lr"] for group in stopped.optim_wrapper.param_groups]
    resumed = train(EPOCHS, second, train_dataloader=loader, **ANEW)
    # Two steps of the second epoch were done; it has six, and is trained from its first.
    assert [index for index, _, _ in second.steps] == list(range(6)) * 2
    assert (resumed.epoch, resumed.iter, resumed.max_iters) == (3, 20, 20)
    assert labels(second)[:2] != labels(first)[6:]
    said = "with the beginning of epoch 2, in an order of their own; it was under way, after batch"
    assert f"resume_data is False: the data continue {said} 2, and is trained again." in log_of(
        resumed
    )
    assert rates[0] < 0.1


def test_counters_optimizer_and_schedules_go_on(train):
    class Rates(Hook):
        def __init__(self):
            self.seen = []

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            state = runner.optim_wrapper.optimizer.state
            momentum = next(iter(state.values()), {}).get("momentum_buffer")
            self.seen.append((runner.iter, runner.optim_wrapper.param_groups[0]["lr"], momentum))

    whole, parts = Rates(), Rates()
    train(EPOCHS, whole, resume=False)
    train(EPOCHS, StopAfter(8), resume=False)
    train(EPOCHS, parts, **ANEW)
    assert [(step, rate) for step, rate, _ in parts.seen[:10]] == [
        (step, rate) for step, rate, _ in whole.seen[8:]
    ]
    assert parts.seen[0][2] is not None


def test_workers_draw_other_numbers(train):
    class Inputs(Hook):
        def __init__(self):
            self.seen = []

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            self.seen.append(data_batch["inputs"])

    in_order = {"type": "DefaultSampler", "shuffle": False}
    loader = loader_cfg(dataset=Blobs(24, noise=0.5), num_workers=1, sampler=in_order)
    first, second = Inputs(), Inputs()
    train(EPOCHS, first, StopAfter(8), train_dataloader=loader)
    train(EPOCHS, second, train_dataloader=loader, **ANEW)
    difference = first.seen[6] - second.seen[0]  # of the same samples
    assert 0 < difference.abs().mean() < 2


@pytest.mark.parametrize("sampler", ["DefaultSampler", "InfiniteSampler"])
def test_a_loop_over_steps_begins_a_pass_of_its_own(train, sampler):
    loader = loader_cfg(sampler={"type": sampler})
    first, second = Seen(), Seen()
    train(ITERATIONS, first, StopAfter(8), train_dataloader=loader)
    resumed = train(ITERATIONS, second, train_dataloader=loader, **ANEW)
    assert (resumed.iter, len(second.steps)) == (18, 10)
    assert drawn_in(second, 6) == sorted(Blobs(24).labels.tolist())
    assert labels(second)[:4] != labels(first)[2:6]


def test_an_epoch_that_only_has_to_be_ended_is_not_trained_again(train):
    train(EPOCHS, StopAfter(6))
    seen = Seen()
    resumed = train(EPOCHS, seen, **ANEW)
    assert [index for index, _, _ in seen.steps] == list(range(6)) * 2
    assert (resumed.epoch, resumed.iter, resumed.max_iters) == (3, 18, 18)
    assert "the data continue with the next epoch, in an order of their own." in log_of(resumed)


@pytest.mark.parametrize("train_cfg", [EPOCHS, ITERATIONS], ids=["epochs", "iterations"])
def test_a_dataset_of_another_size_is_gone_through_whole(train, train_cfg):
    train(train_cfg, StopAfter(8))
    seen = Seen()
    train(train_cfg, seen, train_dataloader=loader_cfg(40), **ANEW)
    assert drawn_in(seen, 10) == sorted(Blobs(40).labels.tolist())


@pytest.mark.parametrize("train_cfg", [EPOCHS, ITERATIONS], ids=["epochs", "iterations"])
@pytest.mark.parametrize("workers", [0, 1], ids=["in-process", "worker"])
def test_the_run_that_began_its_data_anew_is_resumed_exactly(train, tmp_path, train_cfg, workers):
    loader = loader_cfg(dataset=Blobs(24, noise=0.5), num_workers=workers)
    first = train(train_cfg, StopAfter(8), train_dataloader=loader)
    begun = {"load_from": str(first.work_dir / "iter_8.pth"), "train_dataloader": loader}
    whole, parts = Seen(), Seen()
    expected = train(train_cfg, whole, work_dir=tmp_path / "whole", **begun, **ANEW)
    part = train(train_cfg, parts, StopAfter(11), work_dir=tmp_path / "parts", **begun, **ANEW)
    assert load_checkpoint_file(part.work_dir / "iter_11.pth")["data"][0]["position"]["order"] == 8
    resumed = train(train_cfg, parts, work_dir=tmp_path / "parts", train_dataloader=loader)
    assert parts.steps == whole.steps
    assert_alike(state_of(resumed), state_of(expected))


def test_its_order_stays_over_an_epoch(train, tmp_path):
    first = train(EPOCHS, StopAfter(8))
    begun = {"load_from": str(first.work_dir / "iter_8.pth")}
    whole, parts = Seen(), Seen()
    train(EPOCHS, whole, work_dir=tmp_path / "whole", **begun, **ANEW)
    saving = {"work_dir": tmp_path / "parts", "default_hooks": {"checkpoint": {"interval": 1}}}
    with pytest.raises(Killed):
        train(EPOCHS, parts, StopBeforeEpoch(2), **saving, **begun, **ANEW)
    train(EPOCHS, parts, **saving)
    assert parts.steps == whole.steps


def test_other_data_are_told_with_the_way_out(train):
    train(EPOCHS, StopAfter(8))
    resumed = train(EPOCHS, train_dataloader=loader_cfg(40))
    assert (
        "written in a pass of 6 batches, which has 10 in this run: the dataset or the batch size "
        "has changed. The data continue after sample 8 of pass 2. resume_data=False "
        "(--no-resume-data) begins the data anew." in log_of(resumed)
    )
    train(EPOCHS, StopAfter(8), resume=False)
    assert "begins the data anew" not in log_of(train(EPOCHS))


def test_it_is_true_or_false(make_runner):
    with pytest.raises(ConfigError, match=r"resume_data: True or False is needed, got 'no'"):
        make_runner(cfg={"resume_data": "no"})


def test_verifying_a_resume_goes_on_with_the_data(tmp_path):
    report = verify_resume({**runner_arguments(tmp_path / "unused"), "resume_data": False})
    assert report.equal, str(report)


def test_the_plan_of_a_run_says_so(tmp_path):
    plan = make_plan({**runner_arguments(tmp_path / "unused"), "resume_data": False})
    assert "A resumed run starts its data anew (resume_data)." in plan


class StopOnce(Hook):
    """Asks the run to leave after a step, the first time that it comes there."""

    def __init__(self, step):
        self.step = step

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.step:
            self.step = None
            runner.interruption.preempt()
