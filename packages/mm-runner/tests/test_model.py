from collections import OrderedDict, UserDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_sequence
from toy import Classifier
from typing_extensions import override

import mm_dist
from mm_amp import OptimWrapper
from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.errors import ModelOutputError
from mm_runner.model import (
    BaseDataPreprocessor,
    BaseModel,
    eval_step_of,
    is_model_wrapper,
    train_step_of,
    unwrap_model,
)
from mm_runner.registry import MODEL_WRAPPERS

BATCH = {"inputs": torch.ones(2, 4), "labels": torch.tensor([0, 1])}


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Classifier()


@pytest.fixture
def wrapper(model):
    return OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))


def test_train_step_is_forward_backward_and_update(model, wrapper):
    twin = Classifier()
    twin.load_state_dict(model.state_dict())
    logged = model.train_step(BATCH, wrapper)
    loss = twin(**BATCH, mode="loss")["loss"]
    loss.backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    assert torch.equal(logged["loss"], loss.detach())
    assert not logged["loss"].requires_grad
    for ours, by_hand in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, by_hand)


@pytest.mark.parametrize(
    "wrap",
    [
        mm_dist.MMDistributedDataParallel,
        DistributedDataParallel,
        mm_dist.MMSeparateDistributedDataParallel,
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_a_wrapped_model_takes_the_step_of_the_model_alone(wrap):
    """Of whatever batch: mm-dist, which knows nothing of this package, has a step of its own."""
    pair = (BATCH["inputs"], BATCH["labels"])
    batches = [
        BATCH,
        OrderedDict(BATCH),
        UserDict(BATCH),  # as transformers' BatchEncoding is
        MappingProxyType(BATCH),
        list(pair),
        Point(*pair),
        BATCH["inputs"],
        None,
    ]
    outcomes = [[_outcome(batch, kind) for batch in batches] for kind in (lambda x: x, wrap)]
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][6:] == [TypeError] * 2
    assert len({str(outcome) for outcome in outcomes[0][:6]}) == 1


def _outcome(batch, wrap):
    """What a step logs, and the weights after it; or the kind of error."""
    torch.manual_seed(0)
    model = wrap(Classifier(data_preprocessor=_AsItIs()))
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    try:
        logged = train_step_of(model)(batch, wrapper)
    except TypeError:
        return TypeError
    return [(*logged, float(logged["loss"])), [one.tolist() for one in model.parameters()]]


class _AsItIs(BaseDataPreprocessor):
    @override
    def forward(self, data, training=False):
        return data


def test_a_batch_of_another_kind_says_what_it_may_be(model, wrapper):
    with pytest.raises(
        TypeError, match=r"must be a dict .*or a list or tuple.*got Tensor.*collate_fn"
    ):
        model.train_step(torch.ones(2, 4), wrapper)
    with pytest.raises(TypeError, match="got str"):
        model.val_step("batch")


def test_losses_are_summed_by_name_and_means_logged(model):
    one = torch.tensor([1.0, 3.0], requires_grad=True)
    losses = {"loss_cls": one, "acc": torch.tensor(0.5), "loss_box": [one, torch.tensor(4.0)]}
    loss, logged = model.parse_losses(losses)
    assert loss.item() == 2 + 2 + 4
    assert loss.requires_grad
    assert {name: value.item() for name, value in logged.items()} == {
        "loss": 8,
        "loss_cls": 2,
        "acc": 0.5,
        "loss_box": 6,
    }
    assert next(iter(logged)) == "loss"
    assert not any(value.requires_grad for value in logged.values())


@pytest.mark.parametrize(
    ("losses", "error", "message"),
    [
        (
            {"cls": torch.ones(())},
            ConfigError,
            r"mode='loss'\) returned 'cls'; at least one name must contain 'loss'",
        ),
        ({}, ConfigError, r"returned nothing; at least one name must contain 'loss'"),
        (
            {"loss": 1.0},
            ModelOutputError,
            r"'loss': 1\.0; a tensor .*non-empty list",
        ),
        ({"loss": []}, ModelOutputError, r"'loss': \[\]; a tensor .*non-empty list"),
        (
            {"loss": [1.0]},
            ModelOutputError,
            r"of Classifier returned 'loss': \[1\.0\]; a tensor",
        ),
    ],
    ids=["no-loss", "empty", "number", "empty-list", "list-of-numbers"],
)
def test_losses_that_cannot_be_used_say_what_is_needed(model, losses, error, message):
    with pytest.raises(error, match=message):
        model.parse_losses(losses)


def test_losses_that_are_no_dict_say_what_is_needed(model):
    message = r"mode='loss'\) of Classifier returned Tensor\(2,\); a dict of losses is"
    with pytest.raises(ModelOutputError, match=message):
        model.parse_losses(torch.ones(2))


def test_base_model_is_abstract_and_has_no_init_cfg():
    with pytest.raises(TypeError, match="abstract"):
        BaseModel()

    class Model(BaseModel):
        @override
        def forward(self, *args, mode="tensor", **kwargs):
            return None

    with pytest.raises(ConfigError, match=r"init_cfg=\{'type': 'Xavier'\} was given.*init_weights"):
        Model(init_cfg={"type": "Xavier"})


def test_a_data_preprocessor_may_be_a_module_or_a_config():
    assert isinstance(Classifier().data_preprocessor, BaseDataPreprocessor)
    own = nn.Identity()
    assert Classifier(data_preprocessor=own).data_preprocessor is own
    built = Classifier(data_preprocessor={"non_blocking": False}).data_preprocessor
    assert type(built) is BaseDataPreprocessor
    named = Classifier(data_preprocessor={"type": "BaseDataPreprocessor"}).data_preprocessor
    assert type(named) is BaseDataPreprocessor
    with pytest.raises(ComponentNotFoundError, match="Did you mean 'BaseDataPreprocessor'"):
        Classifier(data_preprocessor={"type": "DataPreprocessor"})


def test_data_preprocessor_moves_every_tensor_and_keeps_containers():
    preprocessor = BaseDataPreprocessor().to("meta")
    assert preprocessor.device.type == "meta"
    data = OrderedDict(a=[torch.ones(1)], b=(Point(torch.ones(1), "name"), 3))
    moved = preprocessor(data)
    assert type(moved) is OrderedDict
    assert moved["a"][0].device.type == moved["b"][0].x.device.type == "meta"
    assert moved["b"][0].y == "name"
    assert moved["b"][1] == 3
    assert type(moved["b"][0]) is Point
    lists = preprocessor(defaultdict(list, x=torch.ones(1)))
    assert lists["x"].device.type == "meta"
    assert lists["new"] == []
    assert not preprocessor.state_dict()


class DataSample:
    """As MMEngine's data elements: it moves itself."""

    def __init__(self, boxes):
        self.boxes = boxes

    def to(self, device):
        return DataSample(self.boxes.to(device))

    def cpu(self):
        return self.to("cpu")


class Quantity:
    def to(self, unit):
        raise AssertionError(unit)


def test_data_preprocessor_moves_objects_that_can_be_moved():
    preprocessor = BaseDataPreprocessor().to("meta")
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    batch = {"samples": [DataSample(torch.ones(1))], "packed": packed, "metres": Quantity()}
    moved = preprocessor(batch)
    assert moved["samples"][0].boxes.device.type == "meta"
    assert moved["packed"].data.device.type == "meta"
    assert moved["packed"].batch_sizes.device.type == "cpu"
    assert moved["metres"] is batch["metres"]


def test_data_preprocessor_follows_the_model_and_ignores_its_dtype():
    model = Classifier()
    model.to("meta").double()
    assert model.data_preprocessor.device.type == "meta"
    assert model.data_preprocessor(torch.ones(1)).dtype is torch.float32


@pytest.mark.usefixtures("group_of_one")
def test_unwrap_model_takes_every_wrapper_off(model):
    wrapped = DistributedDataParallel(model)
    assert is_model_wrapper(wrapped)
    assert unwrap_model(wrapped) is model
    assert unwrap_model(model) is model


def test_unwrap_model_takes_a_registered_wrapper_off(model, monkeypatch):
    class Shell(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    assert unwrap_model(shell := Shell(model)) is shell
    monkeypatch.setattr(MODEL_WRAPPERS, "_registered", {})
    MODEL_WRAPPERS.register_module(module=Shell)
    assert unwrap_model(shell) is model


@pytest.mark.usefixtures("group_of_one")
def test_a_wrapper_without_steps_is_stepped_through_its_own_forward(model, wrapper):
    calls = []

    class Counting(DistributedDataParallel):
        def forward(self, *args, **kwargs):
            calls.append(kwargs["mode"])
            return super().forward(*args, **kwargs)

    wrapped = Counting(model)
    assert set(train_step_of(wrapped)(BATCH, wrapper)) == {"loss"}
    assert calls == ["loss"]
    assert torch.equal(eval_step_of(wrapped, "val_step")(BATCH)[0], model.val_step(BATCH)[0])
    assert calls == ["loss"]  # evaluation synchronizes nothing


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "wrapped"])
@pytest.mark.usefixtures("group_of_one")
def test_a_model_without_steps_says_what_is_needed(wrapped):
    model = DistributedDataParallel(nn.Linear(1, 1)) if wrapped else nn.Linear(1, 1)
    lacks = r"train_step\(data, optim_wrapper\).*Linear has none.*BaseModel"
    if wrapped:  # whose step is not the model's
        lacks = r"^Linear has no data_pre.*: DistributedDataParallel trains by .*BaseModel"
    with pytest.raises(ConfigError, match=lacks):
        train_step_of(model)
    with pytest.raises(ConfigError, match=r"val_step\(data\).*Linear has none.*BaseModel"):
        eval_step_of(model, "val_step")


def test_hooks_on_the_data_preprocessor_act_in_a_training_step(model):
    seen = []
    optim_wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    batch = {"inputs": torch.zeros(2, 4), "labels": torch.zeros(2, dtype=torch.long)}
    model.train_step(batch, optim_wrapper)
    model.data_preprocessor.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.data_preprocessor.register_forward_hook(lambda *_: seen.append("after"))
    model.train_step(batch, optim_wrapper)
    assert seen == ["before", "after"]
