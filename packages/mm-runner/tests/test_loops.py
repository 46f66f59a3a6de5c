import pytest
import torch
from torch.utils.data import IterableDataset
from toy import NO_VALIDATION, Classifier, Scripted, loader_cfg

from mm_runner import ConfigError
from mm_runner.evaluator import Evaluator
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, TestLoop, ValLoop


class Epochs(Hook):
    """Keeps the number of epochs done at each validation."""

    def __init__(self):
        self.validated = []

    def before_val(self, runner):
        self.validated.append(runner.epoch)


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"val_interval": 2}, [2, 4, 5]),
        ({"val_begin": 3}, [3, 4, 5]),
        ({"val_begin": 9}, [5]),
        ({"val_interval": 4, "dynamic_intervals": [(3, 1)]}, [3, 4, 5]),
        ({"val_interval": 1, "dynamic_intervals": [(2, 3)]}, [1, 3, 5]),
    ],
    ids=["always", "interval", "begin", "last-anyway", "more-later", "less-later"],
)
def test_epochs_that_are_validated(make_runner, options, validated):
    epochs = Epochs()
    runner = make_runner(train_cfg={"max_epochs": 5, **options}, custom_hooks=[epochs])
    runner.train()
    assert epochs.validated == validated
    assert (runner.epoch, runner.iter, runner.max_epochs, runner.max_iters) == (5, 30, 5, 30)


@pytest.mark.parametrize("name", ["max_epochs", "val_begin", "val_interval"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"], ids=str)
def test_train_loop_needs_positive_integers(name, value):
    numbers = {"max_epochs": 1, name: value}
    with pytest.raises(ConfigError, match=rf"train_cfg\.{name}: a positive integer is needed, got"):
        EpochBasedTrainLoop(None, [1], **numbers)


def test_train_loop_needs_a_batch(make_runner):
    runner = make_runner(train_dataloader=loader_cfg(size=3, batch_size=4, drop_last=True))
    with pytest.raises(ConfigError, match=r"train_dataloader gives no batch.*drop_last"):
        runner.train()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def test_datasets_without_a_length_say_that_one_is_needed(make_runner):
    loader = {"dataset": Stream(), "batch_size": 2}
    with pytest.raises(ConfigError, match=r"train_dataloader: .*Stream has no length.*__len__"):
        make_runner(train_dataloader=loader, **NO_VALIDATION).train()
    with pytest.raises(ConfigError, match=r"val_dataloader: .*Stream has no length.*__len__"):
        make_runner(val_dataloader=loader).val()


@pytest.mark.parametrize(("loop_type", "phase"), [(ValLoop, "val"), (TestLoop, "test")])
def test_evaluation_leaves_the_mode_of_the_model_as_it_was(make_runner, loop_type, phase):
    cfg = {f"{phase}_dataloader": loader_cfg(9), f"{phase}_cfg": {}}
    metric = Scripted(values=[0.25, 0.5])
    runner = make_runner(**cfg, **{f"{phase}_evaluator": metric})
    evaluate = getattr(runner, phase)
    runner.model.train()
    assert evaluate() == {"accuracy": 0.25}
    assert runner.model.training
    runner.model.eval()
    assert evaluate() == {"accuracy": 0.5}
    assert not runner.model.training
    assert type(getattr(runner, f"{phase}_loop")) is loop_type
    assert metric.sizes == [9, 9]


def test_evaluation_computes_in_evaluation_mode_without_gradients(make_runner):
    seen = []

    class Watching(Classifier):
        def forward(self, inputs, labels, mode="tensor"):
            seen.append((mode, self.training, torch.is_grad_enabled()))
            return super().forward(inputs, labels, mode)

    runner = make_runner(
        model=Watching(), train_cfg={"max_epochs": 1}, train_dataloader=loader_cfg(4)
    )
    runner.train()
    assert seen == [("loss", True, True)] + [("predict", False, False)] * 3


def test_evaluation_under_fp16_autocasts_the_step(make_runner):
    dtypes = []

    class Watching(Classifier):
        def forward(self, inputs, labels, mode="tensor"):
            scores, labels = super().forward(inputs, labels, mode)
            dtypes.append(scores.dtype)
            return scores, labels

    runner = make_runner(model=Watching(), val_cfg={"fp16": True})
    runner.val()
    assert dtypes == [torch.bfloat16] * 3  # the CPU's default
    assert isinstance(runner.val_loop.evaluator, Evaluator)


def test_a_loop_of_ones_own_is_named_by_type(make_runner):
    class Once:
        max_epochs = max_iters = 1
        epoch = iter = 0

        def __init__(self, runner, dataloader, greeting):
            self.runner, self.dataloader, self.greeting = runner, dataloader, greeting
            self.has_run = False

        def run(self):
            self.has_run = True

    runner = make_runner(train_cfg={"type": Once, "greeting": "hello"})
    runner.train()
    assert runner.train_loop.has_run
    assert runner.train_loop.greeting == "hello"
