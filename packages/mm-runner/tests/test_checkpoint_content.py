from collections import OrderedDict
from enum import Enum

import pytest
import torch
from torch import nn
from toy import needs_compile

from mm_runner import CheckpointError
from mm_runner.checkpoint import (
    clean_name,
    load_checkpoint_file,
    load_weights,
    plain,
    save_checkpoint_file,
)
from mm_runner.model import BaseModel
from mm_runner.tools import convert_mmengine_checkpoint


def test_clean_name_takes_wrappers_off_the_front_only():
    names = ["module.a", "module._orig_mod.b", "_orig_mod.module.c", "d.module.e", "f._orig_mod.g"]
    assert [clean_name(name) for name in names] == ["a", "b", "c", "d.module.e", "f.g"]


class Named(nn.Module):
    """A model whose own attribute is called ``module``, beside another."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(2, 2)
        self.head = nn.Linear(2, 1)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("make", [lambda: nn.Linear(2, 3), Named], ids=["plain", "own-module"])
def test_load_weights_fits_whatever_the_wrapper_was(make, prefix):
    source, target = make(), make()
    state = {f"{prefix}{name}": value for name, value in source.state_dict().items()}
    assert load_weights(target, state, strict=True) == []
    for name, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], value)


@needs_compile
def test_load_weights_into_a_compiled_model_fits():
    source, target = nn.Linear(2, 3), torch.compile(nn.Linear(2, 3), backend="eager")
    assert load_weights(target, source.state_dict(), strict=True) == []
    assert torch.equal(target.weight, source.weight)


def test_load_weights_refuses_a_file_of_which_nothing_fits():
    with pytest.raises(CheckpointError, match=r"Nothing in the checkpoint fits Linear: missing"):
        load_weights(nn.Linear(2, 3), {"model": torch.ones(1)}, strict=False)


def test_load_weights_says_what_does_not_fit_and_takes_the_rest():
    model = nn.Linear(2, 3)
    state = {"weight": torch.ones(3, 5), "bias": torch.ones(3), "extra": torch.ones(1)}
    problems = load_weights(model, state, strict=False)
    assert problems[0] == "unexpected: extra"
    assert problems[1].startswith(
        "size mismatch for weight: copying a param with shape torch.Size([3, 5])"
    )
    assert torch.equal(model.bias, torch.ones(3))


def test_plain_keeps_primitives_and_brings_tensors_to_the_host():
    parameter = nn.Parameter(torch.ones(2))
    value = plain({"a": [1, (2.5, None)], "b": OrderedDict(c=parameter), 3: "x", "d": True})
    assert value == {"a": [1, (2.5, None)], "b": value["b"], 3: "x", "d": True}
    assert type(value["b"]) is OrderedDict
    assert type(value["b"]["c"]) is torch.Tensor
    assert not value["b"]["c"].requires_grad


class Level(int, Enum):
    HIGH = 3


class Text(str):
    __slots__ = ()


def test_plain_turns_subclasses_of_primitives_into_primitives():
    for value in (Level.HIGH, Text("abc"), torch.__version__):
        assert type(plain(value)) in (int, str)
        assert plain(value) == value
    assert [type(key) for key in plain({Text("k"): 1})] == [str]


def test_plain_names_the_path_of_what_may_not_be_saved():
    with pytest.raises(
        CheckpointError,
        match=r"checkpoint\.mine\[1\]: builtins\.object cannot be saved.*Convert it",
    ):
        plain({"mine": [1, object()]})


class Renamed(nn.Module):
    """Calls its weight otherwise than its first version did."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.shift = nn.Parameter(torch.zeros(2))

    def forward(self, inputs):
        return inputs * self.scale + self.shift

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        if local_metadata.get("version", 1) < 2:  # which called the one as the other
            names = [f"{prefix}{name}" for name in ("scale", "shift")]
            values = [state_dict.pop(name) for name in names if name in state_dict]
            state_dict.update(zip(reversed(names), values, strict=False))
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


class Versioned(BaseModel):
    def __init__(self):
        super().__init__()
        self.part = Renamed()

    def forward(self, inputs, **_):
        return {"loss": self.part(inputs[:, :2]).square().mean()}


def test_a_module_loads_its_own_version_and_migrates_an_older_one(make_runner, tmp_path):
    hooks = {"checkpoint": {"type": "CheckpointHook", "async_save": True}}
    without = dict.fromkeys(("val_dataloader", "val_cfg", "val_evaluator"))
    runner = make_runner(
        model={"type": Versioned}, train_cfg={"max_epochs": 1}, default_hooks=hooks, **without
    )
    runner.train()
    path = tmp_path / "run" / "epoch_1.pth"
    trained = {name: value.clone() for name, value in runner.model.state_dict().items()}

    def loaded(**changes):
        other = make_runner(model={"type": Versioned}, load_from=str(path), **without, **changes)
        other.train_loop.max_epochs = 1
        other.load_or_resume()
        return other.model.state_dict()

    for changes in ({}, {"resume": True}):
        for name, value in loaded(**changes).items():
            assert torch.equal(value, trained[name])
    # Without any package of ours too; torch 1.13 reads no numbers from files without code.
    is_safe = not torch.__version__.startswith("1.")
    plain_torch = torch.load(path, weights_only=is_safe)["state_dict"]
    model = Versioned()
    model.load_state_dict(plain_torch)
    assert torch.equal(model.part.scale, trained["part.scale"])
    checkpoint = load_checkpoint_file(path)
    assert checkpoint["state_dict"]._metadata["part"] == {"version": 2}
    checkpoint["state_dict"]._metadata["part"]["version"] = 1
    save_checkpoint_file(checkpoint, path)
    assert torch.equal(loaded()["part.scale"], trained["part.shift"])


def test_a_converted_checkpoint_keeps_the_versions(tmp_path):
    source, target = Versioned(), Versioned()
    nn.init.constant_(source.part.scale, 3)
    for content in ({"state_dict": source.state_dict(prefix="module.")}, source.state_dict()):
        torch.save(content, tmp_path / "a.pth")
        convert_mmengine_checkpoint(tmp_path / "a.pth", tmp_path / "b.pth")
        weights = load_checkpoint_file(tmp_path / "b.pth")["state_dict"]
        assert load_weights(target, weights, strict=True) == []
        assert torch.equal(target.part.scale, source.part.scale)
