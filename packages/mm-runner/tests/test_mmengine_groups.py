"""Going on from MMEngine's optimizers, which have other parameter groups than ours."""

import collections
import copy

import pytest
import torch
from torch import nn
from toy import NO_VALIDATION, Blobs, Classifier, loader_cfg
from typing_extensions import override

from mm_runner import CheckpointError, ConfigError
from mm_runner.checkpoint import convert_mmengine_checkpoint, load_checkpoint_file
from mm_runner.hooks import EMAHook, Hook
from mm_runner.model import BaseModel

ADAMW = {"type": "AdamW", "lr": 0.01, "weight_decay": 0.05}
SGD = {"type": "SGD", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
PARAMWISE = {
    "norm_decay_mult": 0.0,
    "bias_decay_mult": 0.0,
    "custom_keys": {"head": {"lr_mult": 2.0, "decay_mult": 0.5}, "scale": {"lr_mult": 1.0}},
}
DATA = loader_cfg(sampler={"type": "DefaultSampler", "shuffle": False})


class Net(BaseModel):
    """Parameters of equal settings stand apart, one layer is frozen, and two shapes are alike."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.stem = nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs, labels, mode="tensor"):
        scores = torch.relu(self.norm(self.stem(inputs))) * self.scale
        scores = self.head(torch.relu(self.body(self.frozen(scores))))
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def settings_of(name, cfg):
    """What MMEngine's constructor gives the group of a parameter under ``PARAMWISE``."""
    for key, custom in PARAMWISE["custom_keys"].items():
        if key in name:
            decay = cfg["weight_decay"] * custom.get("decay_mult", 1.0)
            return {"lr": cfg["lr"] * custom["lr_mult"], "weight_decay": decay, **custom}
    return {"weight_decay": 0.0} if "norm" in name or "bias" in name else {}


class TheirRun:
    """Trains as MMEngine does, with a parameter group for each parameter or what ``groups`` says.

    The learning rates are halved after each epoch of six steps, and so is the momentum.
    """

    def __init__(self, model, cfg, groups=None):
        self.model, self.cfg = model, cfg
        options = {key: value for key, value in cfg.items() if key != "type"}
        if groups is None:
            groups = [
                {"params": [one], **settings_of(name, cfg)}
                for name, one in model.named_parameters()
                if one.requires_grad
            ]
        self.optimizer = getattr(torch.optim, cfg["type"])(groups, **options)
        for group in self.optimizer.param_groups:
            if "betas" in group:
                group["momentum"] = group["betas"][0]
            group.update(initial_lr=group["lr"], initial_momentum=group["momentum"])

    def train(self, epochs):
        for _ in range(epochs):
            for batch in torch.utils.data.DataLoader(Blobs(), batch_size=4):
                self.optimizer.zero_grad()
                self.model(**batch, mode="loss")["loss"].backward()
                self.optimizer.step()
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.5
                group["momentum"] *= 0.5
                if "betas" in group:
                    group["betas"] = (group["momentum"], group["betas"][1])

    def convert(self, folder, *, epoch=1, state=None, schedule=None):
        schedules = [schedule or {"_global_step": epoch, "last_step": epoch}] * 2
        content = {
            "meta": {"epoch": epoch, "iter": 6 * epoch, "mmengine_version": "0.10.7", "seed": 0},
            "state_dict": self.model.state_dict(),
            "optimizer": {**(state or self.optimizer.state_dict()), "base_param_settings": {}},
            "param_schedulers": schedules,
        }
        torch.save(content, folder / "theirs.pth")
        convert_mmengine_checkpoint(folder / "theirs.pth", folder / "converted.pth")
        return str(folder / "converted.pth")


@pytest.fixture
def go_on(make_runner, tmp_path):
    """``go_on(theirs, epochs)`` resumes from what a run of MMEngine saved after an epoch."""

    def resume(theirs, paramwise=PARAMWISE, *, epochs=3, **overrides):
        arguments = {
            "model": type(theirs.model)(),
            "train_dataloader": DATA,
            "train_cfg": {"max_epochs": epochs},
            "optim_wrapper": {"optimizer": theirs.cfg, "paramwise_cfg": paramwise},
            "param_scheduler": [
                {"type": "ExponentialLR", "gamma": 0.5},
                {"type": "ExponentialMomentum", "gamma": 0.5},
            ],
            **overrides,
        }
        if "load_from" not in arguments:
            arguments["load_from"] = theirs.convert(tmp_path)
        runner = make_runner(resume=True, **arguments)
        runner.train()
        return runner

    return resume


def assert_goes_on_as(theirs, runner, epochs=2):
    theirs.train(epochs)
    expected = theirs.model.state_dict()
    for name, value in runner.model.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize("cfg", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_a_group_for_each_parameter_becomes_those_of_the_run(go_on, cfg):
    theirs = TheirRun(Net(), cfg)
    theirs.train(1)
    runner = go_on(theirs)
    sizes = [len(group["params"]) for group in runner.optim_wrapper.param_groups]
    assert (len(theirs.optimizer.param_groups), sizes) == (9, [1, 2, 4, 2])
    group = runner.optim_wrapper.param_groups[3]
    assert group["lr"] == pytest.approx(cfg["lr"] * 2 / 4)
    assert not {"lr_mult", "decay_mult"} & group.keys()
    assert_goes_on_as(theirs, runner)


def test_frozen_parameters_in_the_one_group_of_a_run_without_paramwise_cfg(go_on):
    model = Net()
    theirs = TheirRun(model, ADAMW, [{"params": list(model.parameters())}])
    theirs.train(1)
    assert_goes_on_as(theirs, go_on(theirs, paramwise=None))


def test_frozen_parameters_in_groups_of_their_own(go_on):
    model = Net()
    groups = [{"params": [one], **settings_of(name, SGD)} for name, one in model.named_parameters()]
    theirs = TheirRun(model, SGD, groups)  # as older versions of MMEngine have them
    theirs.train(1)
    assert_goes_on_as(theirs, go_on(theirs))


def test_groups_by_layer_are_told_apart_by_the_names_that_they_have(go_on):
    model = Net()
    by_layer = {}
    for name, one in model.named_parameters():
        if one.requires_grad:
            # Not in the order of the model: the flat ones of a layer stand after the others.
            key = ("head" not in name, one.ndim == 1)
            by_layer.setdefault(key, []).append((name, one))
    groups = [
        {
            "params": [one for _, one in members],
            "param_names": [name for name, _ in members],
            "lr": SGD["lr"] * (0.5 if is_below else 1.0),
            "weight_decay": 0.0 if is_flat else SGD["weight_decay"],
            "lr_scale": 0.5 if is_below else 1.0,
            "group_name": f"{is_below}{is_flat}",
        }
        for (is_below, is_flat), members in sorted(by_layer.items())
    ]
    theirs = TheirRun(model, SGD, groups)
    theirs.train(1)
    below = {name: {"lr_mult": 0.5} for name in ("stem.weight", "body.weight")}
    flat = {name: {"lr_mult": 0.5, "decay_mult": 0.0} for name in ("scale", "stem", "norm", "body")}
    paramwise = {"custom_keys": {**flat, **below}, "flat_decay_mult": 0.0}
    assert_goes_on_as(theirs, go_on(theirs, paramwise))


class Two(BaseModel):
    """Two networks that are trained by optimizers of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Net(), Net()

    def forward(self, inputs, labels, mode="tensor"):
        return self.first(inputs, labels, mode)

    def train_step(self, data, optim_wrapper):
        for name, wrapper in optim_wrapper.items():
            wrapper.update_params(getattr(self, name)(**data, mode="loss")["loss"])
        return {}


class SeeAverages(Hook):
    """Keeps how often the averages had moved when a training began."""

    priority = "VERY_LOW"

    @override
    def before_train(self, runner):
        self.steps = {name: average.steps for name, average in self.of.averages.items()}


def test_each_of_several_optimizers_is_that_of_its_part(go_on, tmp_path):
    model = Two()
    theirs = {"first": TheirRun(model.first, ADAMW), "second": TheirRun(model.second, SGD)}
    for one in theirs.values():
        one.train(1)
    whole = TheirRun(model, SGD)
    state = {name: copy.deepcopy(one.optimizer.state_dict()) for name, one in theirs.items()}
    whole.convert(tmp_path, state=state)
    content = load_checkpoint_file(tmp_path / "converted.pth")
    content["optimizer"].pop("base_param_settings")
    content["param_schedulers"] = dict.fromkeys(theirs, content["param_schedulers"])
    # Of EMAHook: the average is the state_dict, and how often it moved is counted once for all.
    own = {f"module.{name}": value for name, value in content["state_dict"].items()}
    content["ema_state_dict"] = {"steps": torch.tensor(6), **own}
    torch.save(content, tmp_path / "two.pth")
    average, seen = EMAHook(momentum=0.5), SeeAverages()
    seen.of = average
    runner = go_on(
        whole,
        load_from=str(tmp_path / "two.pth"),
        optim_wrapper={
            "constructor": "MultiOptimWrapperConstructor",
            "second": {"optimizer": SGD, "paramwise_cfg": PARAMWISE},
            "first": {"optimizer": ADAMW, "paramwise_cfg": PARAMWISE},
        },
        custom_hooks=[average, seen],
        **NO_VALIDATION,
    )
    assert seen.steps == {"second": 6, "first": 6}
    for name, one in theirs.items():
        one.train(2)
        for key, value in getattr(runner.model, name).state_dict().items():
            assert torch.equal(value, one.model.state_dict()[key]), (name, key)


def test_parameters_of_one_group_with_other_settings_are_named(go_on):
    theirs = TheirRun(Net(), ADAMW)
    told = (
        r"paramwise_cfg: these parameters share a group.*a weight_decay of 0\.05 for stem\.weight, "
        r"body\.weight, of 0\.0 for stem\.bias, norm\.weight, norm\.bias, body\.bias\..*load_from"
    )
    with pytest.raises(ConfigError, match=told):
        go_on(theirs, {"custom_keys": PARAMWISE["custom_keys"]})


def several(model):
    found = list(model.parameters())
    return [{"params": found[:2]}, {"params": found[2:]}]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            several,
            r"2 parameter groups of 11 .* 4 parameter groups of 9 .*, and which .* is not said",
        ),
        (lambda model: [{"params": list(model.parameters())}], r"1 .* without a paramwise_cfg"),
        (lambda model: [{"params": [one]} for one in model.head.parameters()], r"are not the same"),
        (
            lambda model: [{"params": [model.scale], "param_name": "scale"}],
            r"do not name stem\.weight, .*, body\.weight, body\.bias and 2 more",
        ),
    ],
    ids=["several-in-each", "one-group", "others-trained", "not-named"],
)
def test_what_cannot_be_put_together_is_told_with_the_numbers(go_on, groups, message):
    model = Net()
    theirs = TheirRun(model, ADAMW, groups(model))
    with pytest.raises(CheckpointError, match=message) as failure:
        go_on(theirs)
    assert "a group for each parameter" in str(failure.value)
    assert "by load_from without resume" in str(failure.value)


def test_state_of_another_shape_is_not_taken(go_on, tmp_path):
    theirs = TheirRun(Net(), SGD)
    theirs.train(1)
    state = copy.deepcopy(theirs.optimizer.state_dict())
    state["state"][1], state["state"][2] = state["state"][2], state["state"][1]
    path = theirs.convert(tmp_path, state=state)
    with pytest.raises(
        CheckpointError,
        match=r"momentum_buffer of number 1 has the shape \(8,\), and stem\.weight.*\(8, 4\)",
    ):
        go_on(theirs, load_from=path)


def test_what_a_schedule_saw_of_its_metric_is_converted(tmp_path):
    saved = {"_global_step": 3, "rule_worse": -1000000000, "num_bad_epochs": 1}
    saved = {**saved, "best": torch.tensor(0.5), "cooldown_counter": 2}
    theirs = TheirRun(Classifier(), SGD)
    (one, _) = load_checkpoint_file(theirs.convert(tmp_path, schedule=saved))["param_schedulers"]
    assert one == {"count": 3, "scheduler": {"best": 0.5, "num_bad": 1, "cooldown_left": 2}}
    saved = {**saved, "best": -1000000000, "num_bad_epochs": 0}
    (one, _) = load_checkpoint_file(theirs.convert(tmp_path, schedule=saved))["param_schedulers"]
    assert one["scheduler"]["best"] is None


def test_milestones_are_no_reason_to_refuse_a_checkpoint(tmp_path):
    saved = {"_global_step": 3, "milestones": collections.Counter([8, 11]), "gamma": 0.1}
    theirs = TheirRun(Classifier(), SGD)
    (one, _) = load_checkpoint_file(theirs.convert(tmp_path, schedule=saved))["param_schedulers"]
    assert one == {"count": 3, "scheduler": None}
