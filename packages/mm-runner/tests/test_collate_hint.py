"""Batches of lists, which is the default, given to models that take tensors."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy import NO_VALIDATION, Blobs, Classifier, Scripted, loader_cfg, needs_compile
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import Supervised

UNSTACKED = {"dataset": Blobs(8), "batch_size": 4}


def _pairs(**options):
    blobs = Blobs(8)
    return {"dataset": TensorDataset(blobs.inputs, blobs.labels), "batch_size": 4, **options}


class TakesLists(Classifier):
    """As MMEngine's models do."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(torch.stack(inputs), torch.stack(labels), mode)


class HalfWay(Classifier):
    """Fails on the numbers of a batch, in its own code."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(torch.stack(inputs), labels.long(), mode)


class FailsOnItsOwn(Classifier):
    """Takes lists, and gives a layer another list."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward([*inputs, torch.ones(3)], labels, mode)


class FailsLater(TakesLists):
    """Takes lists, and does something wrong with one in its second step."""

    num_calls = 0

    def forward(self, inputs, labels, mode="tensor"):
        self.num_calls += 1
        if self.num_calls > 1:
            inputs.sum()
        return super().forward(inputs, labels, mode)


class WrongHook(Hook):
    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        raise TypeError("not what a list is for")


@pytest.mark.parametrize(
    ("model", "loader", "message"),
    [
        (
            Supervised(nn.Linear(4, 3), nn.functional.cross_entropy),
            _pairs(),
            r"^train_dataloader\.collate_fn: Supervised failed .*part 0 is a list of 4 Tensors, ",
        ),
        (
            {"type": Classifier},
            UNSTACKED,
            r"Classifier failed .*'inputs' is a list of 4 Tensors, with .*pseudo_collate",
        ),
        ({"type": HalfWay}, UNSTACKED, r"HalfWay failed .*AttributeError: 'list' object has no at"),
        (
            Supervised(nn.Conv2d(1, 3, 1), nn.functional.cross_entropy),
            _pairs(collate_fn="pseudo_collate"),
            r"Supervised failed .*conv2d.*list.*Set collate_fn='default_collate'",
        ),
    ],
    ids=["supervised", "base-model", "own-code", "convolution"],
)
def test_a_module_that_fails_on_lists_is_told_what_to_set(make_runner, model, loader, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_runner(model=model, train_dataloader=loader, **NO_VALIDATION).train()
    assert "Set collate_fn='default_collate'" in str(caught.value)
    assert isinstance(caught.value.__cause__, (TypeError, AttributeError))


def test_a_validation_and_a_test_name_their_own_loader(make_runner):
    runner = make_runner(val_dataloader=UNSTACKED)
    for run in (runner.val, runner.train):
        with pytest.raises(ConfigError, match=r"^val_dataloader\.collate_fn: Classifier failed on"):
            run()
    runner = make_runner(
        test_dataloader=UNSTACKED, test_cfg={}, test_evaluator={"type": "Accuracy"}
    )
    with pytest.raises(ConfigError, match=r"^test_dataloader\.collate_fn: Classifier failed on"):
        runner.test()


@needs_compile
def test_a_compiled_module_is_told_as_well(make_runner):
    torch._dynamo.reset()
    runner = make_runner(
        train_dataloader=UNSTACKED, cfg={"compile": {"backend": "eager"}}, **NO_VALIDATION
    )
    with pytest.raises(ConfigError, match=r"^train_dataloader\.collate_fn: Classifier failed on"):
        runner.train()


def test_models_that_take_lists_and_other_failures_are_left_alone(make_runner):
    make_runner(
        model=TakesLists(), train_dataloader=UNSTACKED, train_cfg={"max_epochs": 1}, **NO_VALIDATION
    ).train()
    with pytest.raises(TypeError, match="not what a list is for"):
        make_runner(
            model=TakesLists(),
            train_dataloader=UNSTACKED,
            custom_hooks=[WrongHook()],
            **NO_VALIDATION,
        ).train()
    with pytest.raises(AttributeError, match="'list' object has no attribute 'sum'"):
        make_runner(model=FailsLater(), train_dataloader=UNSTACKED, **NO_VALIDATION).train()
    with pytest.raises(AttributeError, match="'list' object has no attribute 'sum'"):
        make_runner(model=FailsLater(), val_dataloader=UNSTACKED).val()
    with pytest.raises(TypeError, match="list"):  # a metric's own: the model was content
        make_runner(
            model=TakesLists(), val_dataloader=loader_cfg(5, 2, collate_fn=_in_lists),
            val_evaluator=Scripted(values=[1.0]),
        ).val()  # fmt: skip


def _in_lists(samples):
    return [[one["inputs"] for one in samples], [one["labels"] for one in samples]]


class Mute:
    """Does not say which shape it has."""

    @property
    def shape(self):
        raise KeyError("shape")


class FailsOnMutes(Classifier):
    """Makes such objects of a list, and fails on them."""

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(_refuse([Mute() for _ in inputs]), labels, mode)


def _refuse(values):
    raise TypeError(f"a list of {len(values)} was given")


def test_what_cannot_be_found_out_leaves_the_error_as_it_is(make_runner):
    with pytest.raises(TypeError, match="a list of 4 was given"):
        make_runner(model=FailsOnMutes(), train_dataloader=UNSTACKED, **NO_VALIDATION).train()


def test_a_list_of_the_models_own_keeps_its_error(make_runner):
    with pytest.raises(TypeError, match="list"):
        make_runner(
            model={"type": FailsOnItsOwn}, train_dataloader=UNSTACKED, **NO_VALIDATION
        ).train()
