"""Loops, optimizer wrappers and schedules that a script, a hook or a subclass assigns."""

import os
import signal

import pytest
import torch.distributed as dist
from toy import NO_VALIDATION, RecordRates, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.loops import IterBasedTrainLoop, ValLoop

STEPS = {"default_hooks": {"checkpoint": {"by_epoch": False, "interval": 1}}, **NO_VALIDATION}


class Assign(Hook):
    """Gives each training a loop of three steps, or of ``max_iters``."""

    def __init__(self, max_iters=3):
        self.max_iters = max_iters

    @override
    def before_run(self, runner):
        loader = runner.train_dataloader
        runner.train_loop = IterBasedTrainLoop(runner, loader, max_iters=self.max_iters)


class Places(Hook):
    """Keeps what the run says of itself in each step."""

    def __init__(self):
        self.seen = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.seen.append((runner.iter, runner.max_iters, runner.max_epochs, runner.val_interval))


def checkpoints(runner):
    return sorted(path.name for path in runner.work_dir.glob("*.pth"))


def test_a_loop_that_a_hook_assigns_counts(make_runner):
    places = Places()
    runner = make_runner(**STEPS, custom_hooks=[Assign(), places])
    runner.train()
    assert places.seen == [(step, 3, 1, 1000) for step in range(3)]
    assert (runner.iter, runner.epoch, runner.val_begin) == (3, 0, 1)
    assert checkpoints(runner) == ["iter_1.pth", "iter_2.pth", "iter_3.pth"]


def test_hooks_registered_meanwhile_act_in_an_assigned_loop(make_runner):
    late = Places()

    class Register(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 0:
                runner.register_hook(late)

    make_runner(**NO_VALIDATION, custom_hooks=[Assign(), Register()]).train()
    assert [place[0] for place in late.seen] == [1, 2]


def test_a_subclass_may_train_by_itself(tmp_path):
    class Own(Runner):
        def train(self):
            self.train_loop = self.build_train_loop(self._train["train_cfg"])
            self.optim_wrapper = self.build_optim_wrapper(self._train["optim_wrapper"])
            self.call_hook("before_run")
            self.train_loop.run()
            self.call_hook("after_run")

    places = Places()
    runner = Own(**runner_arguments(tmp_path / "run", **STEPS, custom_hooks=[places]))
    runner.train()
    assert [place[0] for place in places.seen] == list(range(12))
    assert "iter_12.pth" in checkpoints(runner)


@pytest.mark.parametrize("asked", [False, True], ids=["unasked", "asked-for-before"])
def test_the_next_training_uses_what_was_assigned_and_the_one_after_its_own(make_runner, asked):
    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates])
    for _ in range(2):
        if asked:
            assert runner.train_loop.dataloader is runner.train_dataloader
        wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.5}})
        loop = IterBasedTrainLoop(runner, runner.train_dataloader, max_iters=3)
        runner.optim_wrapper, runner.train_loop = wrapper, loop
        runner.train()
        assert runner.optim_wrapper is wrapper
        assert runner.train_loop is loop
        assert (runner.iter, rates.rates) == (3, [0.5] * 3)
        rates.rates.clear()
    runner.train()
    assert runner.optim_wrapper is not wrapper
    assert (runner.iter, rates.rates) == (12, [0.1] * 12)


def test_a_training_after_one_whose_hook_assigned_a_loop_has_its_own(make_runner):
    class Once(Assign):
        def before_run(self, runner):
            if self.max_iters:
                super().before_run(runner)
            self.max_iters = 0

    runner = make_runner(**NO_VALIDATION, custom_hooks=[Once()])
    runner.train()
    assert runner.iter == 3
    runner.train()
    assert runner.iter == 12


def test_schedules_over_an_assigned_wrapper_are_built_once(make_runner):
    halved = {"type": "ConstantLR", "factor": 0.5, "end": 2}
    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates], param_scheduler=halved)
    assert runner.train_loop is not None
    runner.optim_wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.8}})
    runner.param_schedulers = runner.build_param_scheduler(halved)
    runner.train()
    assert rates.rates == pytest.approx([0.4] * 6 + [0.8] * 6)
    rates.rates.clear()
    runner.train()
    assert rates.rates == pytest.approx([0.05] * 6 + [0.1] * 6)


def test_an_assigned_evaluation_loop_is_used(make_runner):
    runner = make_runner()
    loop = ValLoop(runner, runner.val_dataloader, runner.val_evaluator)
    loop.limit = 1
    runner.val_loop = runner.test_loop = loop
    assert runner.val_dataloader is loop.dataloader
    runner.train()
    assert runner.val_loop is loop
    assert runner.test() == runner.val()


def test_a_config_that_is_assigned_is_built(make_runner):
    rates = RecordRates()
    runner = make_runner(custom_hooks=[rates])
    runner.train_loop = {"by_epoch": False, "max_iters": 4}
    runner.optim_wrapper = {"optimizer": {"type": "SGD", "lr": 0.5}}
    runner.param_schedulers = {"type": "ConstantLR", "factor": 0.5, "by_epoch": False, "end": 2}
    runner.val_loop = {"type": ValLoop}
    runner.train()
    assert type(runner.train_loop) is IterBasedTrainLoop
    assert rates.rates == pytest.approx([0.25] + [0.5] * 3)
    runner.train()
    assert rates.rates[4:] == [0.1] * 12


def test_a_loop_whose_config_was_assigned_may_be_asked_for(make_runner):
    runner = make_runner(**NO_VALIDATION)
    before = runner.train_loop
    runner.train_loop = {"by_epoch": False, "max_iters": 4}
    assert runner.iter == 0
    asked = runner.train_loop
    assert asked is not before
    asked.max_iters = 3
    runner.train()
    assert runner.train_loop is asked
    assert runner.iter == 3


def test_none_takes_an_assignment_back(make_runner):
    runner = make_runner(
        **NO_VALIDATION, param_scheduler={"type": "ConstantLR", "factor": 0.5, "end": 9}
    )
    runner.train_loop = {"by_epoch": False, "max_iters": 4}
    runner.optim_wrapper = {"optimizer": {"type": "Adam"}}
    runner.train_loop = runner.optim_wrapper = None
    runner.param_schedulers = None  # of schedules there may be none
    runner.train()
    assert runner.iter == 12
    assert runner.optim_wrapper.get_lr()["lr"] == [0.1]
    assert type(runner.optim_wrapper.optimizer).__name__ == "SGD"


def test_scripts_may_use_the_names_that_mmengine_keeps_loops_under(make_runner):
    runner = make_runner()
    loop = IterBasedTrainLoop(runner, runner.train_dataloader, max_iters=3)
    runner._train_loop = loop
    runner._val_loop = None
    assert runner._train_loop is loop
    runner.train()
    assert (runner.iter, runner.val_loop) == (3, None)


def test_what_a_hook_assigns_as_a_training_ends_is_for_the_next(make_runner):
    lengths = []

    class Next(Hook):
        @override
        def after_run(self, runner):
            runner.train_loop = {"by_epoch": False, "max_iters": runner.iter - 1}
            lengths.append(runner.iter)

    runner = make_runner(**NO_VALIDATION, custom_hooks=[Next()])
    for _ in range(3):
        runner.train()
    assert lengths == [12, 11, 10]


class Term(Hook):
    """Lets the first process be asked to leave in its third step."""

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 2 and runner.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.barrier()


def _leave_together(_, work_dir):
    runner = Runner(
        **runner_arguments(
            work_dir,
            train_dataloader=loader_cfg(batch_size=2),
            **NO_VALIDATION,
            launcher="none",
            custom_hooks=[Assign(20_000), Term()],
        )
    )
    with pytest.raises(RunStopped):
        runner.train()
    steps = [None] * 2
    dist.all_gather_object(steps, runner.iter)
    assert steps[0] == steps[1] >= 3
    assert runner.interruption.saved.name == f"iter_{runner.iter}.pth"


def test_ranks_leave_an_assigned_loop_together(run_ranks, tmp_path):
    run_ranks(_leave_together, 2, tmp_path / "run")
