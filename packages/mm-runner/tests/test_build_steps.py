"""Methods of the Runner that build its parts: a subclass that overrides one changes the run."""

import functools

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy import NO_VALIDATION, Classifier, RecordRates, loader_cfg, runner_arguments
from typing_extensions import override

from mm_amp import OptimWrapper
from mm_runner import ConfigError, Runner
from mm_runner.evaluator import Accuracy, Evaluator
from mm_runner.loops import EpochBasedTrainLoop, TestLoop, ValLoop
from mm_runner.optim import ParamScheduler
from mm_runner.registry import MODEL_WRAPPERS
from mm_runner.reporting import LogProcessor

TEST = {
    "test_dataloader": loader_cfg(size=7),
    "test_cfg": {},
    "test_evaluator": {"type": "Accuracy"},
}
OF_CONSTRUCTOR = ["build_log_processor", "setup_env", "set_randomness", "build_model", "wrap_model"]
OF_TRAINING = [
    "build_train_loop",
    "build_dataloader",
    "build_optim_wrapper",
    "scale_lr",
    "build_param_scheduler",
    "build_val_loop",
    "build_dataloader",
    "build_evaluator",
    "load_or_resume",
]


def noting(calls, *names):
    """A Runner that notes in ``calls`` which of its methods are called, in MMEngine's way."""

    def wrapped(name):
        own = getattr(Runner, name)

        @functools.wraps(own)
        def call(*args, **kwargs):
            calls.append(name)
            return own(*args, **kwargs)

        return staticmethod(call) if name in ("build_dataloader", "build_evaluator") else call

    return type("Noting", (Runner,), {name: wrapped(name) for name in names})


def make(kind, tmp_path, **overrides):
    return kind(**runner_arguments(**{"work_dir": tmp_path / "run", **overrides}))


def test_the_order_in_which_a_run_is_built(tmp_path):
    calls = []
    kind = noting(calls, *OF_CONSTRUCTOR, *OF_TRAINING, "build_test_loop", "dump_config")
    runner = make(kind, tmp_path, **TEST)
    assert calls == [*OF_CONSTRUCTOR, "dump_config"]
    calls.clear()
    runner.train()
    assert calls == OF_TRAINING
    calls.clear()
    runner.val()
    assert calls == ["load_or_resume"]
    calls.clear()
    runner.test()
    assert calls == ["build_test_loop", "build_dataloader", "build_evaluator", "load_or_resume"]


class Own(Runner):
    """Overrides every step, each time with another result."""

    def build_log_processor(self, log_processor):
        return super().build_log_processor({**(log_processor or {}), "num_digits": 7})

    def setup_env(self, env_cfg):
        super().setup_env({**(env_cfg or {}), "resource_limit": 128})
        self.env_was = env_cfg

    @override
    def set_randomness(self, seed, diff_rank_seed=False, deterministic=False):
        super().set_randomness(seed + 5, diff_rank_seed, deterministic)

    def build_model(self, model):
        return super().build_model({**model, "dropout": 0.25})

    def wrap_model(self, model_wrapper_cfg, model):
        wrapped = super().wrap_model(model_wrapper_cfg, model)
        wrapped.greeting = "wrapped"
        return wrapped

    def build_train_loop(self, loop):
        return super().build_train_loop({**loop, "max_epochs": 3})

    def build_val_loop(self, loop):
        return super().build_val_loop({**loop, "fp16": True})

    def build_test_loop(self, loop):
        built = super().build_test_loop(loop)
        built.greeting = "tested"
        return built

    def build_optim_wrapper(self, optim_wrapper):
        return super().build_optim_wrapper({**optim_wrapper, "accumulative_counts": 2})

    def scale_lr(self, optim_wrapper, auto_scale_lr=None):
        super().scale_lr(optim_wrapper, {**auto_scale_lr, "enable": True})

    def build_param_scheduler(self, scheduler):
        return super().build_param_scheduler([scheduler, scheduler])

    def build_evaluator(self, evaluator):
        return super().build_evaluator([evaluator, Accuracy(prefix="more")])


def test_each_step_that_is_overridden_has_its_effect(tmp_path):
    rates = RecordRates()
    runner = make(
        Own,
        tmp_path,
        auto_scale_lr={"base_batch_size": 16},
        env_cfg={"cudnn_benchmark": False},
        param_scheduler={"type": "ConstantLR", "factor": 0.5, "end": 2},
        custom_hooks=[rates],
        **TEST,
    )
    assert runner.log_processor.num_digits == 7
    assert runner.env_was == {"cudnn_benchmark": False}
    assert runner.seed == 5
    assert runner.model.layers[2].p == 0.25
    assert runner.model.greeting == "wrapped"
    runner.train()
    assert runner.max_epochs == 3
    assert runner.optim_wrapper.accumulative_counts == 2
    # 0.1 for a batch of 16, which is 2 x 4; and both schedules halve it in the first epoch.
    assert rates.rates == pytest.approx([0.0125] * 6 + [0.05] * 12)
    assert runner.val_loop.fp16
    assert set(runner.val()) == {"accuracy", "more/accuracy"}
    assert set(runner.test()) == {"accuracy", "more/accuracy"}
    assert runner.test_loop.greeting == "tested"


def test_what_a_script_builds_by_itself_leaves_the_run_as_it_is(tmp_path):
    plain = make(Runner, tmp_path)
    plain.train()
    runner = make(Runner, tmp_path, **TEST)
    model = runner.build_model({"type": Classifier, "dropout": 0.25})
    assert type(model) is Classifier
    assert runner.wrap_model(None, model) is model
    train, val, test = (
        getattr(runner, f"build_{phase}_loop")(cfg)
        for phase, cfg in (("train", {"max_epochs": 1}), ("val", {}), ("test", {}))
    )
    assert [type(train), type(val), type(test)] == [EpochBasedTrainLoop, ValLoop, TestLoop]
    assert runner.build_train_loop(train) is train
    assert runner.build_val_loop(val) is val
    wrapper = runner.build_optim_wrapper({"optimizer": {"type": "SGD", "lr": 0.5}})
    assert type(wrapper) is OptimWrapper
    assert runner.build_optim_wrapper(wrapper) is wrapper
    runner.scale_lr(wrapper)
    runner.scale_lr(wrapper, {"base_batch_size": 8, "enable": False})
    assert wrapper.get_lr() == {"lr": [0.5]}
    runner.scale_lr(wrapper, {"base_batch_size": 8, "enable": True})
    assert wrapper.get_lr() == {"lr": [0.25]}
    assert type(runner.build_log_processor({"window_size": 3})) is LogProcessor
    assert type(runner.build_evaluator(Accuracy())) is Evaluator
    with pytest.raises(ConfigError, match=r"scheduler\(\) .* before optim_wrapper is built"):
        runner.build_param_scheduler({"type": "StepLR", "step_size": 1})
    runner.optim_wrapper = wrapper
    (schedule,) = runner.build_param_scheduler({"type": "StepLR", "step_size": 1})
    assert isinstance(schedule, ParamScheduler)
    assert runner.param_schedulers == []
    runner.set_randomness(seed=0)
    runner.train_loop.max_epochs = 2
    runner.train()
    assert (runner.iter, runner.max_iters) == (plain.iter, plain.max_iters)


def test_learning_rates_are_scaled_before_they_are_scheduled(tmp_path):
    runner = make(Runner, tmp_path, param_scheduler={"type": "StepLR", "step_size": 1})
    runner.train()
    scaling = {"base_batch_size": 8, "enable": True}
    with pytest.raises(ConfigError, match=r"auto_scale_lr\.base: unknown key"):
        runner.scale_lr(runner.optim_wrapper, {"base": 8})
    wrapper = runner.optim_wrapper
    again = make(
        Runner,
        tmp_path,
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}},
        param_scheduler={"type": "StepLR", "step_size": 1},
        auto_scale_lr=scaling,
    )
    again.train()
    again.train()  # the schedules of the first training are not those of the second
    assert again.optim_wrapper is not wrapper


def test_a_phase_that_is_not_configured_cannot_be_built(tmp_path):
    phases = ("train_dataloader", "train_cfg", "optim_wrapper")
    runner = make(Runner, tmp_path, **dict.fromkeys(phases), **NO_VALIDATION)
    assert (runner.train_loop, runner.val_loop, runner.test_loop) == (None, None, None)
    for phase, last in (("train", "optim_wrapper"), ("val", "val_evaluator")):
        with pytest.raises(ConfigError, match=rf"^build_{phase}_loop\(\): .*and {last}"):
            getattr(runner, f"build_{phase}_loop")({"max_epochs": 1})
    with pytest.raises(ConfigError, match=r"^build_param_scheduler\(\): the Runner has no"):
        runner.build_param_scheduler(None)
    with pytest.raises(AttributeError, match=r"no train loop, as it got no train_dataloader"):
        _ = runner.train_dataloader


@pytest.mark.usefixtures("group_of_one")
def test_a_wrapped_model_is_left_as_it_is(tmp_path):
    runner = make(Runner, tmp_path)
    assert type(runner.model).__name__ == "MMDistributedDataParallel"
    wrapped = DistributedDataParallel(Classifier())
    assert runner.wrap_model(None, wrapped) is wrapped
    with pytest.raises(ConfigError, match=r"wrapped already, in DistributedDataParallel"):
        runner.wrap_model({"type": "MMDistributedDataParallel"}, wrapped)
    own = runner.wrap_model({"type": "DistributedDataParallel"}, Classifier())
    assert type(own) is DistributedDataParallel
    with pytest.raises(ConfigError, match=r"model_wrapper_cfg: a dict is needed, got 3"):
        runner.wrap_model(3, Classifier())


def test_a_model_in_a_registered_wrapper_is_wrapped(tmp_path, monkeypatch):
    class Shell(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    monkeypatch.setitem(MODEL_WRAPPERS._registered, "Shell", Shell)
    shell = Shell(Classifier())
    runner = make(Runner, tmp_path)
    assert runner.wrap_model(None, shell) is shell
    with pytest.raises(ConfigError, match=r"wrapped already, in Shell"):
        runner.wrap_model({"type": "Shell"}, shell)
