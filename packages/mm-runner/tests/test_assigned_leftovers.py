"""What assigning leaves behind for later trainings, and what it must not."""

import copy

import pytest
import torch
from test_assigned_by_hooks import At
from test_assigned_kept import FailAt, LeaveOnce
from torch import nn
from toy import NO_VALIDATION, Classifier, Killed, RecordRates, runner_arguments
from typing_extensions import override

from mm_amp import OptimWrapper
from mm_runner import ConfigError, Runner
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook

SCALED = {"auto_scale_lr": {"base_batch_size": 8, "enable": True}}
STEPWISE = {"default_hooks": {"checkpoint": {"by_epoch": False, "interval": 1}}, **NO_VALIDATION}
COSINE = {"type": "CosineAnnealingLR", "by_epoch": False}
HALVED = {"type": "ConstantLR", "factor": 0.5, "end": 9}


def made(kind, tmp_path, **options):
    return kind(**runner_arguments(tmp_path / "run", **{**NO_VALIDATION, **options}))


def train_again(runner, error=Killed):
    with pytest.raises(error):
        runner.train()
    runner.train()


# Subclasses of the Runner.


@pytest.mark.parametrize(
    "name", ["optim_wrapper", "train_loop", "val_loop", "param_schedulers", "_train_loop"]
)
def test_a_subclass_may_set_parts_before_the_constructor_runs(tmp_path, name):
    class Early(Runner):
        def __init__(self, *args, **options):
            setattr(self, name, [] if name == "param_schedulers" else None)
            super().__init__(*args, **options)

    runner = made(Early, tmp_path)
    runner.train()
    assert runner.iter == 12


class BuildsTorchSchedules(Runner):
    @override
    def build_param_scheduler(self, scheduler):
        return [torch.optim.lr_scheduler.StepLR(self.optim_wrapper.optimizer, 1)]


def test_a_subclass_may_build_schedules_that_its_own_hook_steps(tmp_path):
    class Step(Hook):
        @override
        def after_train_epoch(self, runner):
            runner.param_schedulers[0].step()

    rates = RecordRates()
    hooks = {"custom_hooks": [Step(), rates], "default_hooks": {"param_scheduler": None}}
    made(BuildsTorchSchedules, tmp_path, **hooks).train()
    assert rates.rates == pytest.approx([0.1] * 6 + [0.01] * 6)


def test_schedules_that_our_hook_would_step_are_still_checked(tmp_path):
    with pytest.raises(ConfigError, match=r"^param_schedulers: StepLR has no by_epoch"):
        made(BuildsTorchSchedules, tmp_path).train()


class AssignsWrapper(Runner):
    @override
    def build_optim_wrapper(self, optim_wrapper):
        self.optim_wrapper = super().build_optim_wrapper(optim_wrapper)
        return self.optim_wrapper


class AssignsSchedules(Runner):
    @override
    def build_param_scheduler(self, scheduler):
        self.param_schedulers = super().build_param_scheduler(scheduler)
        return self.param_schedulers


class WrapsInAStep(Runner):
    build_order = (*Runner.build_order[:2], "wrap_again", *Runner.build_order[2:])

    def wrap_again(self):
        assert not hasattr(self.optim_wrapper, "depth")
        self.optim_wrapper = OptimWrapper(self.optim_wrapper.optimizer)
        self.optim_wrapper.depth = 1


@pytest.mark.parametrize("kind", [AssignsWrapper, AssignsSchedules, WrapsInAStep])
@pytest.mark.parametrize(("hook", "error"), [(FailAt(6), Killed), (LeaveOnce(6), RunStopped)])
def test_what_build_methods_assign_is_built_anew(tmp_path, kind, hook, error):
    rates, again = RecordRates(), type(hook)(6)
    hooks = [rates, again]
    runner = made(kind, tmp_path, **SCALED, param_scheduler=COSINE, custom_hooks=hooks)
    with pytest.raises(error):
        runner.train()
    wrapper, num_rates = runner.optim_wrapper, len(rates.rates)
    runner.train()
    assert runner.optim_wrapper is not wrapper
    assert runner.iter == 12
    first = rates.rates[0] if error is Killed else rates.rates[num_rates]
    assert rates.rates[num_rates] == first
    assert rates.rates[0] == pytest.approx(0.05)


# Wrappers.


@pytest.mark.parametrize("schedules", [None, COSINE])
def test_rates_are_scaled_once_however_often_their_optimizer_is_wrapped(make_runner, schedules):
    def wrap(runner):
        runner.optim_wrapper = OptimWrapper(runner.optim_wrapper.optimizer)

    rates = RecordRates()
    hooks = [At("before_run", wrap), rates]
    make_runner(**NO_VALIDATION, **SCALED, param_scheduler=schedules, custom_hooks=hooks).train()
    assert rates.rates[0] == pytest.approx(0.05)


def test_a_wrapper_needs_no_weak_references(tmp_path):
    class Slotted:
        __slots__ = ("inner",)

        def __init__(self, inner):
            object.__setattr__(self, "inner", inner)

        def __getattr__(self, name):
            return getattr(object.__getattribute__(self, "inner"), name)

        def __setattr__(self, name, value):
            setattr(self.inner, name, value)

    class Own(Runner):
        @override
        def build_optim_wrapper(self, optim_wrapper):
            return Slotted(super().build_optim_wrapper(optim_wrapper))

    rates = RecordRates()
    runner = made(Own, tmp_path, **SCALED, custom_hooks=[rates])
    runner.train()
    assert rates.rates == pytest.approx([0.05] * 12)


class AfterStep(Hook):
    """Assigns a wrapper that accumulates, after a step, and counts the optimizer's steps."""

    def __init__(self, step):
        self.step, self.num_steps = step, 0

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.num_steps += bool(runner.optim_wrapper.last_result.stepped)
        if runner.iter + 1 == self.step:
            sgd = {"type": "SGD", "lr": 0.1}
            runner.optim_wrapper = {"optimizer": sgd, "accumulative_counts": 4}


@pytest.mark.parametrize(("step", "expected"), [(5, 5 + 2), (6, 6 + 2), (8, 8 + 1)])
def test_a_wrapper_assigned_while_training_knows_how_many_steps_are_left(
    make_runner, step, expected
):
    hook = AfterStep(step)
    runner = make_runner(**NO_VALIDATION, custom_hooks=[hook])
    runner.train()
    assert hook.num_steps == expected
    assert not runner.holds_gradients


def test_what_was_assigned_amid_a_training_that_failed_is_not_for_the_beginning(make_runner):
    class Phase(Hook):
        @override
        def after_train_epoch(self, runner):
            if runner.epoch == 0:
                runner.optim_wrapper = {"optimizer": {"type": "SGD", "lr": 0.01}}

    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates, Phase(), FailAt(9)])
    with pytest.raises(Killed):
        runner.train()
    rates.rates.clear()
    runner.train()
    assert rates.rates == pytest.approx([0.1] * 6 + [0.01] * 6)


def test_what_could_not_be_assigned_leaves_no_trace(make_runner):
    others = make_runner().build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 1.0}})

    def assign(runner):
        with pytest.raises(ConfigError):
            runner.optim_wrapper = others
        with pytest.raises(ConfigError):
            runner.param_schedulers = [HALVED, {"type": "ConstantLR", "factor": -1, "end": 0}]

    def rates_of(*hooks):
        rates = RecordRates()
        options = {**STEPWISE, "param_scheduler": COSINE, "custom_hooks": [*hooks, rates]}
        runner = make_runner(**options)
        while not rates.rates or runner.iter < 12:
            try:
                runner.train()
            except RunStopped:
                continue
        return rates.rates

    with_bad = rates_of(At("after_train_epoch", assign), LeaveOnce(9))
    assert with_bad == pytest.approx(rates_of())


@pytest.mark.parametrize("accumulative_counts", [1, 4])
def test_gradients_of_the_wrapper_before_are_not_left_to_another_one(
    make_runner, accumulative_counts
):
    class Assign(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            if runner.iter == 5:
                runner.optim_wrapper = {"optimizer": {"type": "SGD", "lr": 0.1}}
                grads = [one.grad for one in runner.model.parameters()]
                assert all(one is None or not one.any() for one in grads)

    wrapper = {
        "optimizer": {"type": "SGD", "lr": 0.1},
        "accumulative_counts": accumulative_counts,
    }
    runner = make_runner(**NO_VALIDATION, optim_wrapper=wrapper, custom_hooks=[Assign()])
    runner.train()
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert ("since its last step are dropped" in log) == (accumulative_counts == 4)


@pytest.mark.parametrize("how", ["add", "drop"])
def test_schedules_changed_in_place_while_training_are_of_that_training(make_runner, how):
    class Change(Hook):
        @override
        def after_train_epoch(self, runner):
            if runner.epoch > 0:
                return
            if how == "add":
                runner.param_schedulers.extend(runner.build_param_scheduler(HALVED))
            else:
                runner.param_schedulers.pop()

    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, param_scheduler=COSINE, custom_hooks=[Change(), rates])
    runner.train()
    first = rates.rates[:]
    runner.train()
    assert rates.rates[12:] == pytest.approx(first)


# Models.


class Counting(nn.Module):
    """A model around another one."""

    def __init__(self, module):
        super().__init__()
        self.module, self.num_steps = module, 0

    def train_step(self, data, optim_wrapper):
        self.num_steps += 1
        return self.module.train_step(data, optim_wrapper)


@pytest.mark.parametrize("is_another", [False, True])
def test_a_model_assigned_while_training_takes_the_next_steps(make_runner, is_another):
    class Wrap(Hook):
        @override
        def before_train_epoch(self, runner):
            if runner.epoch == 1:
                inner = Classifier() if is_another else runner.model
                runner.model = Counting(inner)

    runner = make_runner(**NO_VALIDATION, custom_hooks=[Wrap()])
    runner.train()
    assert runner.model.num_steps == 6
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert ("goes on with the parameters of the one before" in log) == is_another


# Loops.


@pytest.mark.parametrize("name", ["train_dataloader", "val_dataloader", "val_evaluator"])
def test_parts_of_a_loop_are_assigned_to_the_loop(make_runner, name):
    runner, part = make_runner(), name.partition("_")[2]
    with pytest.raises(ConfigError, match=rf"^{name} .* assign runner\.\w+_loop\.{part}\.$"):
        setattr(runner, name, getattr(runner, name))


def test_loops_written_for_mmengine_read_what_it_has_there(make_runner):
    runner = make_runner(**NO_VALIDATION)
    assert runner._randomness_cfg.get("diff_rank_seed", False) is False
    assert runner._randomness_cfg["seed"] == runner.seed
    assert runner.train_loop._runner is runner


@pytest.mark.parametrize("by", ["resume", "set_randomness"])
def test_a_loop_that_was_only_asked_for_does_not_hold_the_seed(make_runner, tmp_path, by):
    first = make_runner(**STEPWISE, work_dir=tmp_path / "first", randomness={"seed": 7})
    first.train()
    runner = make_runner(
        **NO_VALIDATION,
        work_dir=tmp_path / "second",
        randomness={"seed": 3},
        custom_hooks=[FailAt(2)],
    )
    assert len(runner.train_dataloader) == 6
    with pytest.raises(Killed):
        runner.train()
    if by == "resume":
        runner.resume(first.work_dir / "iter_6.pth")
    else:
        runner.set_randomness(9)
    runner.train()
    assert (runner.iter, runner.seed) == (12, 7 if by == "resume" else 9)
    assert runner.train_loop.batches.seed == runner.seed


def test_a_loop_begins_where_it_was_set_to_after_it_was_assigned(make_runner):
    rates = RecordRates()
    runner = make_runner(**NO_VALIDATION, custom_hooks=[rates, FailAt(15)])
    loop = runner.train_loop = runner.build_train_loop({"max_epochs": 3})
    loop.epoch, loop.iter = 2, 12
    with pytest.raises(Killed):
        runner.train()
    rates.rates.clear()
    runner.train()
    assert (runner.train_loop, runner.epoch, runner.iter) == (loop, 3, 18)
    assert len(rates.rates) == 6


class Validating(nn.Module):
    """A copy of a model that cannot be trained."""

    def __init__(self, model):
        super().__init__()
        self.inner = copy.deepcopy(model)

    def val_step(self, data):
        return self.inner.val_step(data)


def test_another_model_may_validate_and_none_may_be_left(make_runner):
    class Swap(Hook):
        @override
        def before_val(self, runner):
            self.trained = runner.model
            runner.model = Validating(runner.model)

        @override
        def after_val(self, runner):
            runner.model = self.trained

        @override
        def after_train(self, runner):
            runner.model = None

    runner = make_runner(custom_hooks=[Swap()])
    runner.train()
    assert runner.iter == 12
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "was assigned while training" not in log


def test_a_model_that_cannot_be_trained_is_told_with_the_next_step(make_runner):
    class Give(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            runner.model = Validating(runner.model)

    runner = make_runner(**NO_VALIDATION, custom_hooks=[Give()])
    with pytest.raises(ConfigError, match="Validating has none"):
        runner.train()
    assert runner.iter == 1
