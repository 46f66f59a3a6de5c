"""Methods of a subclass that forget what they are for, and clean-ups that fail."""

import pytest
from toy import NO_VALIDATION, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop

TEST = {
    "test_dataloader": runner_arguments("")["val_dataloader"],
    "test_cfg": {},
    "test_evaluator": {"type": "Accuracy"},
}


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("build_log_processor", "the log processor"),
        ("build_model", "the model"),
        ("wrap_model", "the model"),
        ("build_train_loop", "the loop"),
        ("build_dataloader", "the dataloader"),
        ("build_optim_wrapper", "the optimizer wrapper"),
        ("build_param_scheduler", r"the schedules, \[\] for none"),
        ("build_val_loop", "the loop"),
        ("build_evaluator", "the evaluator"),
    ],
)
def test_a_method_that_forgets_to_return_is_told(tmp_path, method, what):
    own = type("Own", (Runner,), {method: lambda *_, **__: None})
    with pytest.raises(ConfigError, match=rf"Own\.{method}\(\) returned None; return {what}\.$"):
        own(**runner_arguments(tmp_path / "run")).train()


def test_evaluations_and_loops_asked_for_early_are_told_alike(tmp_path):
    class Own(Runner):
        def build_train_loop(self, loop):
            super().build_train_loop(loop)

        def build_test_loop(self, loop):
            super().build_test_loop(loop)

    runner = Own(**runner_arguments(tmp_path / "run", **TEST))
    with pytest.raises(ConfigError, match=r"Own\.build_test_loop\(\) returned None; return the"):
        runner.test()
    with pytest.raises(ConfigError, match=r"Own\.build_train_loop\(\) returned None; return the"):
        _ = runner.train_dataloader


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("setup_env", r"did not set dist_info; call super\(\)\.setup_env\(env_cfg\) in it"),
        ("set_randomness", r"did not choose a seed; call super\(\)\.set_randomness\(seed, diff"),
    ],
)
def test_a_method_that_leaves_out_that_of_the_runner_is_told(tmp_path, method, message):
    own = type("Own", (Runner,), {method: lambda *_, **__: None})
    with pytest.raises(ConfigError, match=rf"Own\.{method}\(\) {message}"):
        own(**runner_arguments(tmp_path / "run"))


def test_an_order_with_what_is_no_method_is_refused(tmp_path):
    order = (*Runner.build_order, "warm_up")
    own = type("Own", (Runner,), {"build_order": order, "warm_up": 3})
    message = r"^Own\.build_order: 'warm_up' is 3; a method without arguments is needed\.$"
    with pytest.raises(ConfigError, match=message):
        own(**runner_arguments(tmp_path / "run")).train()


class Dirty(Hook):
    """Fails as it cleans up, and in the training if it is told to."""

    def __init__(self, *, fails=False):
        self.fails = fails

    @override
    def before_train_epoch(self, runner):
        if self.fails:
            raise ValueError("in the training")

    @override
    def clean_up(self, runner):
        raise OSError("in the clean-up")


class Clean(Hook):
    priority = "LOWEST"

    def __init__(self):
        self.is_clean = False

    @override
    def clean_up(self, runner):
        self.is_clean = not runner.is_training


class Closing(EpochBasedTrainLoop):
    is_closed = False

    def close(self):
        self.is_closed = True
        super().close()
        raise OSError("in the loop")


@pytest.mark.parametrize("fails", [True, False])
def test_whatever_fails_the_rest_is_cleaned_up(make_runner, fails):
    clean = Clean()
    runner = make_runner(
        **NO_VALIDATION,
        train_cfg={"type": Closing, "max_epochs": 1},
        custom_hooks=[Dirty(fails=fails), clean],
    )
    error, message = (ValueError, "in the training") if fails else (OSError, "in the clean-up")
    with pytest.raises(error, match=message):
        runner.train()
    assert clean.is_clean
    assert runner.train_loop.is_closed
    assert not runner.is_training
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "Dirty.clean_up() failed as the training ended" in log
    assert "OSError: in the clean-up" in log
    assert "Closing.close() failed as the training ended" in log
