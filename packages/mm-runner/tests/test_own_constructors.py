"""Optimizer constructors that subclass DefaultOptimWrapperConstructor."""

import pytest
from torch import nn

from mm_runner import ConfigError
from mm_runner.optim import DefaultOptimWrapperConstructor, build_optim_wrapper


class LayerDecay(DefaultOptimWrapperConstructor):
    """Learning rates by depth, a group for each parameter."""

    def __init__(self, optim_wrapper_cfg, paramwise_cfg=None):
        super().__init__(optim_wrapper_cfg, paramwise_cfg=paramwise_cfg)

    def add_params(self, params, module, prefix="", depth_of=None):
        depth_of = depth_of or module.depth_of
        for name, parameter in module.named_parameters(recurse=False):
            scale = self.paramwise_cfg["decay_rate"] ** depth_of(prefix + name)
            group = {"params": [parameter], "lr": self.base_lr * scale, "name": prefix + name}
            if name == "bias":
                group["weight_decay"] = self.base_wd * self.paramwise_cfg["bias_decay_mult"]
            params.append(group)
        for name, child in module.named_children():
            self.add_params(params, child, prefix=f"{prefix}{name}.", depth_of=depth_of)


class SkipsHead(DefaultOptimWrapperConstructor):
    """The rules of the base, but nothing of the head."""

    def add_params(self, params, module, prefix="", **kwargs):
        if prefix != "head":
            super().add_params(params, module, prefix=prefix, **kwargs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        self.head = nn.Linear(2, 2)

    def depth_of(self, name):
        return 0 if name.startswith("head") else 2 - int(name.split(".")[1])


def groups_of(constructor, **paramwise):
    cfg = {
        "constructor": constructor,
        "optimizer": {"type": "AdamW", "lr": 1.0, "weight_decay": 0.5},
        "paramwise_cfg": paramwise,
    }
    model = Net()
    return model, build_optim_wrapper(model, cfg).param_groups


def test_add_params_decides_the_groups_and_reads_its_own_keys():
    _, groups = groups_of(LayerDecay, decay_rate=0.5, bias_decay_mult=0.0)
    found = {group["name"]: (group["lr"], group["weight_decay"]) for group in groups}
    assert found == {
        **{f"body.0.{name}": (0.25, decay) for name, decay in (("weight", 0.5), ("bias", 0.0))},
        **{f"body.1.{name}": (0.5, decay) for name, decay in (("weight", 0.5), ("bias", 0.0))},
        **{f"head.{name}": (1.0, decay) for name, decay in (("weight", 0.5), ("bias", 0.0))},
    }


def test_the_rules_of_the_base_are_those_of_each_part():
    model, groups = groups_of(SkipsHead, bias_lr_mult=2.0, custom_keys={"body.1": {"lr_mult": 0.1}})
    rates = {one: group["lr"] for group in groups for one in group["params"]}
    assert [rates.get(one) for one in model.parameters()] == [1.0, 2.0, 0.1, 0.1, None, None]


def test_an_unknown_key_of_the_default_constructor_stays_an_error():
    with pytest.raises(ConfigError, match=r"^optim_wrapper\.paramwise_cfg\.decay_rate: unknown"):
        groups_of("DefaultOptimWrapperConstructor", decay_rate=0.5)


def test_a_run_trains_with_an_own_constructor(make_runner):
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        optim_wrapper={
            "constructor": SkipsHead,
            "optimizer": {"type": "SGD", "lr": 0.1},
            "paramwise_cfg": {"bias_lr_mult": 2.0},
        },
    )
    runner.train()
    assert {group["lr"] for group in runner.optim_wrapper.param_groups} == {0.1, 0.2}
