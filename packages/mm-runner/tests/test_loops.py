import multiprocessing

import pytest
import torch
from torch.utils.data import IterableDataset
from toy import NO_VALIDATION, Blobs, Classifier, Scripted, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.evaluator import Evaluator
from mm_runner.hooks import STAGES, Hook
from mm_runner.loops import IterBasedTrainLoop, TestLoop, ValLoop


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


def test_the_loop_of_a_validation_has_defaults(make_runner):
    epochs = Epochs()
    make_runner(train_cfg={"max_epochs": 1}, val_cfg=None, custom_hooks=[epochs]).train()
    assert epochs.validated == [1]


class Stages(Hook):
    """Keeps the order of stages."""

    def __init__(self):
        self.stages = []


def _note(stage):
    def method(self, _, **arguments):
        index = arguments.get("batch_idx")
        self.stages.append(stage if index is None else f"{stage} {index}")

    return method


for _stage in STAGES:
    if _stage != "after_load_checkpoint":
        setattr(Stages, _stage, _note(_stage))


def test_a_loop_over_steps_is_one_epoch_to_hooks(make_runner):
    stages = Stages()
    runner = make_runner(
        train_dataloader=loader_cfg(size=8, batch_size=4),
        val_dataloader=loader_cfg(size=3),
        train_cfg={"by_epoch": False, "max_iters": 3, "val_interval": 2},
        custom_hooks=[stages],
        default_hooks={"checkpoint": None},
    )
    runner.train()
    validation = ["before_val", "before_val_epoch", "before_val_iter 0", "after_val_iter 0"]
    validation += ["after_val_epoch", "after_val"]
    steps = [[f"before_train_iter {index}", f"after_train_iter {index}"] for index in range(3)]
    assert stages.stages == [
        *("before_run", "before_train", "before_train_epoch"),
        *(*steps[0], *steps[1], *validation, *steps[2], *validation),
        *("after_train_epoch", "after_train", "after_run"),
    ]
    assert type(runner.train_loop) is IterBasedTrainLoop
    assert (runner.epoch, runner.iter, runner.max_epochs, runner.max_iters) == (0, 3, 1, 3)


class ValidatedSteps(Hook):
    def __init__(self):
        self.steps = []

    def before_val(self, runner):
        self.steps.append(runner.iter)


@pytest.mark.parametrize(
    ("options", "validated"),
    [
        ({}, [11]),
        ({"val_interval": 4}, [4, 8, 11]),
        ({"val_interval": 2, "val_begin": 5}, [6, 8, 10, 11]),
        ({"val_interval": 5, "dynamic_intervals": [(7, 2), (10, 1)]}, [5, 8, 10, 11]),
    ],
    ids=["default", "interval", "begin", "dynamic"],
)
def test_steps_that_are_validated(make_runner, options, validated):
    steps = ValidatedSteps()
    cfg = {"by_epoch": False, "max_iters": 11, **options}
    make_runner(train_cfg=cfg, custom_hooks=[steps]).train()
    assert steps.steps == validated


def test_a_loop_over_steps_goes_through_the_data_anew_and_shuffles_it(make_runner):
    drawn = []

    class Drawn(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            drawn.append(data_batch["inputs"][:, 0].tolist())

    cfg = {"by_epoch": False, "max_iters": 9}
    runner = make_runner(train_cfg=cfg, custom_hooks=[Drawn()], **NO_VALIDATION)
    runner.train()
    passes = [[one for batch in part for one in batch] for part in (drawn[:6], drawn[6:])]
    assert sorted(passes[0]) == sorted(runner.train_dataloader.dataset.inputs[:, 0].tolist())
    assert passes[1] != passes[0][:12]
    assert len(set(passes[1])) == 12
    # As the epochs of a loop over epochs.
    whole, drawn = drawn[:], []
    make_runner(train_cfg={"max_epochs": 2}, custom_hooks=[Drawn()], **NO_VALIDATION).train()
    assert drawn[:9] == whole


def test_a_hook_may_end_training(make_runner):
    class Enough(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            runner.train_loop.stop_training = runner.iter + 1 == 4

        def after_train_epoch(self, runner):
            runner.train_loop.stop_training = True

    steps = make_runner(train_cfg={"by_epoch": False, "max_iters": 11}, custom_hooks=[Enough()])
    steps.train()
    assert steps.iter == 4
    epochs = make_runner(train_cfg={"max_epochs": 3}, custom_hooks=[Enough()])
    epochs.train()
    assert epochs.epoch == 1


def test_an_infinite_sampler_needs_a_loop_over_steps(make_runner):
    loader = loader_cfg(sampler={"type": "InfiniteSampler"})
    with pytest.raises(ConfigError, match=r"InfiniteSampler was given to a loop over epochs"):
        make_runner(train_dataloader=loader).train()
    runner = make_runner(
        train_dataloader=loader, train_cfg={"by_epoch": False, "max_iters": 20}, **NO_VALIDATION
    )
    runner.train()
    assert runner.train_loop.state_dict()["position"]["batch"] == 20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by_epoch": "no"}, r"train_cfg\.by_epoch"),
        ({"max_iters": 0}, r"train_cfg\.max_iters: an integer >= 1 is needed, got 0"),
        (
            {"dynamic_intervals": [(1, 0)]},
            r"train_cfg\.dynamic_intervals: an integer >= 1 is needed, got 0",
        ),
        (
            {"dynamic_intervals": [(5,)]},
            r"^train_cfg: .* refused its arguments: ValueError: not enough values",
        ),
    ],
    ids=["by-epoch", "no-steps", "no-interval", "no-pair"],
)
def test_what_a_loop_over_steps_refuses(make_runner, changes, message):
    with pytest.raises(ConfigError, match=message):
        make_runner(train_cfg={"by_epoch": False, "max_iters": 3, **changes}).train()


def test_a_loop_over_steps_needs_a_batch(make_runner):
    loader = loader_cfg(size=3, batch_size=4, drop_last=True)
    cfg = {"by_epoch": False, "max_iters": 3}
    with pytest.raises(ConfigError, match=r"train_dataloader gives no batch.*drop_last"):
        make_runner(train_dataloader=loader, train_cfg=cfg).train()


def test_train_loop_needs_a_batch(make_runner):
    runner = make_runner(train_dataloader=loader_cfg(size=3, batch_size=4, drop_last=True))
    with pytest.raises(ConfigError, match=r"train_dataloader gives no batch.*drop_last"):
        runner.train()


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


class Claims(IterableDataset):
    """Gives other numbers of samples than its length says."""

    def __init__(self, size, length):
        self.size, self.length = size, length

    def __len__(self):
        return self.length

    def __iter__(self):
        blobs = Blobs(24)
        return (blobs[index] for index in range(self.size))


def test_an_epoch_of_another_length_than_the_loader_says_is_told_once(make_runner):
    loader = loader_cfg(dataset=Claims(8, length=24))
    runner = make_runner(train_dataloader=loader)
    runner.train()
    assert (runner.iter, runner.max_iters) == (4, 12)
    text = next(runner.log_dir.glob("*.log")).read_text()
    assert text.count("gave 2 batches in an epoch, and its length is 6") == 1
    runner = make_runner(train_dataloader=loader_cfg(dataset=Claims(0, length=24)))
    with pytest.raises(ConfigError, match=r"gave 0 batches in an epoch, .* 6\. Let the dataset"):
        runner.train()


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


class FailOnce(Hook):
    def __init__(self):
        self.is_due = True

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.is_due and batch_idx == 1:
            self.is_due = False
            raise KeyboardInterrupt


class FirstBatchOnly(ValLoop):
    """A loop of the user's own, in MMEngine's manner."""

    @override
    def run(self):
        self.run_iter(0, next(iter(self.dataloader)))
        return self.evaluator.evaluate(len(self.dataloader.dataset))


def test_a_validation_loop_of_ones_own_may_run_single_batches(make_runner):
    metric = Scripted(values=[0.5])
    runner = make_runner(val_evaluator=metric, val_cfg={"type": FirstBatchOnly})
    assert runner.val() == {"accuracy": 0.5}
    assert metric.sizes == [4]


def test_an_evaluation_that_was_cut_off_leaves_nothing_in_the_next(make_runner):
    metric = Scripted(values=[0.5])
    runner = make_runner(val_evaluator=metric, custom_hooks=[FailOnce()])
    with pytest.raises(KeyboardInterrupt):
        runner.val()
    assert len(metric.results) == 8
    runner.val()
    assert metric.sizes == [9]


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


class FailAt(Hook):
    """Raises after a step of training."""

    def __init__(self, at):
        self.at = at

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.at:
            raise RuntimeError("stop")


@pytest.mark.parametrize("persistent", [False, True], ids=["per-pass", "persistent"])
@pytest.mark.parametrize("by_epoch", [False, True], ids=["iterations", "epochs"])
def test_a_run_that_ends_or_fails_leaves_no_worker(make_runner, by_epoch, persistent):
    loader = loader_cfg(num_workers=1, persistent_workers=persistent)
    train_cfg = {"max_epochs": 2} if by_epoch else {"by_epoch": False, "max_iters": 9}
    arguments = {"train_dataloader": loader, "val_dataloader": loader, "train_cfg": train_cfg}
    whole = make_runner(**arguments)
    whole.train()
    failing = make_runner(**arguments, custom_hooks=[FailAt(8)])
    with pytest.raises(RuntimeError, match="stop"):
        failing.train()
    assert multiprocessing.active_children() == []
