"""Parameters that differ in learning rate, weight decay and other settings."""

import warnings

import pytest
import torch
from torch import nn
from toy import Classifier

from mm_runner import ConfigError
from mm_runner.optim import build_optim_wrapper

SGD = {"type": "SGD", "lr": 1.0, "weight_decay": 0.5}


class Model(nn.Module):
    """One of each kind that a rule speaks of."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 1)
        self.depthwise = nn.Conv2d(4, 4, 3, groups=4)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))


def settings(model, paramwise, optimizer=SGD, **options):
    """Learning rate and weight decay by the name of the parameter."""
    wrapper = build_optim_wrapper(
        model, {"optimizer": optimizer, "paramwise_cfg": paramwise, **options}
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"])
        for group in wrapper.param_groups
        for parameter in group["params"]
    }


def changed(found):
    return {name: pair for name, pair in found.items() if pair != (1.0, 0.5)}


@pytest.mark.parametrize(
    ("paramwise", "expected"),
    [
        (
            {"bias_lr_mult": 2},
            dict.fromkeys(("conv.bias", "depthwise.bias", "head.bias"), (2.0, 0.5)),
        ),
        ({"norm_decay_mult": 0}, {"norm.weight": (1.0, 0.0), "norm.bias": (1.0, 0.0)}),
        (
            {"bias_decay_mult": 0, "norm_decay_mult": 2},
            {
                "conv.bias": (1.0, 0.0),
                "depthwise.bias": (1.0, 0.0),
                "head.bias": (1.0, 0.0),
                "norm.weight": (1.0, 1.0),
                "norm.bias": (1.0, 1.0),
            },
        ),
        (
            {"dwconv_decay_mult": 0},
            {"depthwise.weight": (1.0, 0.0), "depthwise.bias": (1.0, 0.0)},
        ),
        (
            {"flat_decay_mult": 0, "bias_decay_mult": 2},
            {
                "conv.bias": (1.0, 1.0),
                "depthwise.bias": (1.0, 1.0),
                "head.bias": (1.0, 1.0),
                "norm.bias": (1.0, 1.0),
                "norm.weight": (1.0, 0.0),
                "scale": (1.0, 0.0),
            },
        ),
        (
            {
                "bias_lr_mult": 9,
                "custom_keys": {"head": {"lr_mult": 0.1}, "head.bias": {"decay_mult": 0.0}},
            },
            {
                "conv.bias": (9.0, 0.5),
                "depthwise.bias": (9.0, 0.5),
                "head.weight": (0.1, 0.5),
                "head.bias": (1.0, 0.0),
            },
        ),
    ],
    ids=["bias-lr", "norm", "norm-before-bias", "depthwise", "flat", "custom"],
)
def test_each_rule_changes_what_it_names(paramwise, expected):
    assert changed(settings(Model(), paramwise)) == expected


def test_a_single_number_is_not_flat():
    model = Model()
    model.temperature = nn.Parameter(torch.tensor(1.0))
    expected = ["conv.bias", "depthwise.bias", "head.bias", "norm.bias", "norm.weight", "scale"]
    found = changed(settings(model, {"flat_decay_mult": 0}))
    assert sorted(found) == expected


def test_parameters_with_equal_settings_share_a_group():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(5)))
    cfg = {"optimizer": SGD, "paramwise_cfg": {"norm_decay_mult": 0, "bias_decay_mult": 0}}
    groups = build_optim_wrapper(model, cfg).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.5, 5),
        (0.0, 15),
    ]


def test_a_custom_key_may_set_anything_of_the_group():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    cfg = {"optimizer": SGD, "paramwise_cfg": {"custom_keys": {"0.": {"momentum": 0.7}}}}
    assert [group["momentum"] for group in build_optim_wrapper(model, cfg).param_groups] == [0.7, 0]


def test_factors_apply_to_the_optimizers_own_defaults():
    found = settings(nn.Linear(2, 2), {"bias_decay_mult": 0.5}, {"type": "AdamW"})
    assert found == {"weight": (1e-3, 1e-2), "bias": (1e-3, 5e-3)}


def test_frozen_parameters_are_in_no_group():
    model = Model()
    model.conv.requires_grad_(requires_grad=False)
    found = settings(model, {"custom_keys": {"head": {"lr_mult": 2}}})
    assert not any(name.startswith("conv.") for name in found)
    assert len(found) == len(list(model.parameters())) - 2


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        self.head.weight = self.embed.weight


def test_a_shared_parameter_counts_once_under_its_first_name():
    rules = {"custom_keys": {"embed": {"lr_mult": 2}, "head": {"lr_mult": 3}}}
    assert settings(Tied(), {**rules, "bypass_duplicate": True}) == {"embed.weight": (2.0, 0.5)}
    assert len(build_optim_wrapper(Tied(), {"optimizer": SGD}).param_groups[0]["params"]) == 1


def test_a_custom_key_that_matches_nothing_is_told():
    with pytest.warns(UserWarning, match=r"custom_keys: 'haed' is part of no .*mean 'head'"):
        settings(Model(), {"custom_keys": {"haed": {"lr_mult": 0.1}}})
    with pytest.warns(UserWarning, match=r"'layers\.9' is part of no"):  # of a deeper model
        settings(Classifier(), {"custom_keys": {"layers.9": {"lr_mult": 0.1}}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings(Model(), {"custom_keys": {"he": {"lr_mult": 0.1}, "head": {"lr_mult": 0.1}}})


def test_parts_of_several_optimizers_have_rules_of_their_own():
    cfg = {
        "constructor": "MultiOptimWrapperConstructor",
        "paramwise_cfg": {"bias_lr_mult": 2},
        "a": {"optimizer": SGD},
        "b": {"optimizer": SGD, "paramwise_cfg": {"bias_lr_mult": 3}},
    }
    wrappers = build_optim_wrapper(nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)}), cfg)
    assert wrappers.get_lr() == {"a.lr": [1.0, 2.0], "b.lr": [1.0, 3.0]}


@pytest.mark.parametrize(
    ("paramwise", "optimizer", "message"),
    [
        ({"bias_lr_mul": 2}, SGD, r"paramwise_cfg\.bias_lr_mul: unknown key.*'bias_lr_mult'"),
        ({"norm_decay_mult": "0"}, SGD, r"paramwise_cfg\.norm_decay_mult: a finite number.*'0'"),
        (
            {"flat_decay_mult": 0},
            {"type": "LBFGS"},
            r"flat_decay_mult: it multiplies weight_decay, which the optimizer was not given",
        ),
        ({"custom_keys": {"a": 3}}, SGD, r"custom_keys\.a: a dict such as.*got 3"),
        (
            {"custom_keys": {"head": {"lr_mul": 3}}},
            SGD,
            r"custom_keys\.head\.lr_mul: unknown key; known are .* Did you mean 'lr_mult'",
        ),
        ([1], SGD, r"paramwise_cfg: a dict .*got \[1\]"),
        ({"x": 1}, torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1), r"a ready SGD"),
    ],
    ids=["key", "text", "no-decay", "custom", "custom-key", "list", "ready"],
)
def test_wrong_rules_are_named_by_their_path(paramwise, optimizer, message):
    with pytest.raises(ConfigError, match=message):
        settings(Model(), paramwise, optimizer)


@pytest.mark.usefixtures("group_of_one")
def test_names_are_those_of_the_model_inside_its_wrapper():
    model = nn.parallel.DistributedDataParallel(Classifier())
    wrapper = build_optim_wrapper(
        model,
        {"optimizer": SGD, "paramwise_cfg": {"custom_keys": {"layers.0.": {"lr_mult": 0.1}}}},
    )
    assert [len(group["params"]) for group in wrapper.param_groups] == [2, 2]
