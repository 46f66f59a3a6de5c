"""Modules of others, which know nothing of the Runner: trained, loaded into, frozen in part."""

import json
import re

import pytest
import torch
from test_checkpoint_shards import needs_sharding
from torch import nn
from torch.utils.data import TensorDataset
from toy import NO_VALIDATION, Blobs, Killed, StopBeforeEpoch, loader_cfg, log_of, runner_arguments

from mm_runner import CheckpointError, ComponentNotFoundError, ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint, load_checkpoint_file
from mm_runner.hooks import FreezeHook, Hook
from mm_runner.model import Supervised
from mm_runner.registry import MODELS

LOSS = "torch.nn.functional:cross_entropy"


class Net(nn.Module):
    """A backbone with a batch normalization, and a head."""

    def __init__(self, classes=3):
        super().__init__()
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8)
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(8, classes)

    def forward(self, inputs):
        return self.head(self.backbone(inputs))


class Outputs(dict):
    """A mapping with attributes, as the outputs of Hugging Face's models are."""

    @property
    def logits(self):
        return self["logits"]


class WithLoss(Net):
    """Computes its loss where the batch has labels."""

    def forward(self, inputs, labels=None):
        logits = super().forward(inputs)
        outputs = Outputs(logits=logits)
        if labels is not None:
            outputs["loss"] = nn.functional.cross_entropy(logits, labels)
        return outputs


class Holder:
    """Keeps its arguments; made by a method."""

    def __init__(self, parts):
        self.parts = parts

    @classmethod
    def from_parts(cls, parts):
        return cls(parts)


def pairs(size=24):
    blobs = Blobs(size)
    return loader_cfg(dataset=TensorDataset(blobs.inputs, blobs.labels))


def of_pairs(**overrides):
    more = {"cfg": {"loss": LOSS}, "train_dataloader": pairs(), "val_dataloader": pairs(9)}
    return {"model": Net(), **more, **overrides}


def initial():
    torch.manual_seed(7)
    return Net()


# Training.


@pytest.mark.parametrize(
    "model", [Net(), {"type": "test_fine_tuning:Net"}], ids=["object", "config"]
)
def test_a_module_trains_with_a_loss_beside_it(make_runner, model):
    runner = make_runner(**of_pairs(model=model, train_cfg={"max_epochs": 12}))
    runner.train()
    assert runner.val()["accuracy"] > 0.8
    saved = load_checkpoint_file(runner.work_dir / "epoch_12.pth")["state_dict"]
    assert list(saved) == list(Net().state_dict())
    Net().load_state_dict(saved)


def test_a_module_trains_with_the_loss_that_it_computes(make_runner):
    runner = make_runner(model=WithLoss(), train_cfg={"max_epochs": 12})
    runner.train()
    assert runner.val()["accuracy"] > 0.8
    with pytest.raises(ConfigError, match=r"^loss: none was given, and Net does not take"):
        make_runner(**of_pairs(cfg={})).train()
    with pytest.raises(ConfigError, match=r"^loss: none was given, and Net returned a Tensor"):
        make_runner(model=Net()).train()


def test_a_loss_beside_a_model_that_computes_its_own_is_named(make_runner):
    assert "loss has no effect: Classifier" in log_of(make_runner(cfg={"loss": LOSS}))


class Masked(Net):
    """Takes a second argument that is no target, as newer models of timm do."""

    def forward(self, inputs, mask=None):
        return super().forward(inputs if mask is None else inputs * mask)


class Answers(Net):
    """Has no logits among its outputs."""

    def forward(self, inputs, labels=None):  # noqa: ARG002 - of the batch
        scores = super().forward(inputs)
        return {"loss": scores.sum(), "start": scores[:, :1], "end": scores[:, 1:2]}


def test_what_is_no_input_or_prediction_is_left_out(make_runner):
    runner = make_runner(**of_pairs(model=Masked(), cfg={}))
    scores, labels = runner.model(*[torch.ones(3, 4), torch.zeros(3)], mode="predict")
    assert torch.equal(scores, runner.model.net(torch.ones(3, 4)))
    assert torch.equal(labels, torch.zeros(3))
    found, _ = make_runner(model=Answers()).model(**next(iter(batches())), mode="predict")
    assert set(found) == {"start", "end"}


def batches():
    return torch.utils.data.DataLoader(Blobs(4), batch_size=2)


# Components by import path get what they need, built.


def test_parts_of_a_component_by_import_path_are_built():
    layer = {
        "type": "torch.nn:TransformerEncoderLayer",
        "d_model": 8,
        "nhead": 2,
        "batch_first": True,
    }
    cfg = {"type": "torch.nn:TransformerEncoder", "encoder_layer": layer, "num_layers": 2}
    assert len(MODELS.build(cfg).layers) == 2
    assert cfg["encoder_layer"] is layer
    parts = [{"type": "torch.nn:ReLU"}, {"a": {"type": "torch.nn:Tanh"}}, {"type": "ReLU"}]
    held = MODELS.build({"type": "test_fine_tuning:Holder.from_parts", "parts": parts})
    assert [type(one) for one in held.parts] == [nn.ReLU, dict, dict]
    assert isinstance(held.parts[1]["a"], nn.Tanh)
    layer["nheads"] = layer.pop("nhead")
    with pytest.raises(ConfigError, match=r"^model\.encoder_layer\.nheads: unknown .*'nhead'"):
        MODELS.build(cfg)
    with pytest.raises(ComponentNotFoundError, match=r"Holder'> has no 'from_part'.*from_parts"):
        MODELS.build({"type": "test_fine_tuning:Holder.from_part"})


# Weights of others.


def write_bin(folder, weights):
    torch.save(weights, folder / "pytorch_model.bin")


def write_shards(folder, weights):
    names = list(weights)
    shards = {"a.bin": names[:3], "b.bin": names[3:]}
    for file, held in shards.items():
        torch.save({name: weights[name] for name in held}, folder / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")


@pytest.mark.parametrize("write_into", [write_bin, write_shards])
def test_a_directory_is_loaded_and_what_does_not_fit_is_one_table(
    make_runner, tmp_path, write_into
):
    source = Net(classes=10)
    weights = {f"model.{name}": one for name, one in source.state_dict().items()}
    write_into(tmp_path, weights)
    names = [(r"^model\.", "")]
    load_from = {"checkpoint": str(tmp_path), "revise_keys": names}
    target = Net()
    head = target.head.weight.clone()
    runner = make_runner(**of_pairs(model=target, load_from=load_from))
    runner.load_or_resume()
    assert torch.equal(target.backbone[0].weight, source.backbone[0].weight)
    assert torch.equal(target.head.weight, head)
    log = log_of(runner)
    assert "load_from: 9 of the 11 entries of the model are loaded; the others keep" in log
    assert "size mismatch for net.head.weight" in log


def test_what_a_directory_lacks_or_names_outside_of_it_is_an_error(make_runner, tmp_path):
    folder = tmp_path / "pretrained"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"has config\.json\. Needed is model\.safetensors"):
        make_runner(**of_pairs(load_from=str(folder))).load_or_resume()
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../epoch_1.pth"}}))
    with pytest.raises(CheckpointError, match=r"names .*; files beside it are needed"):
        make_runner(**of_pairs(load_from=str(folder))).load_or_resume()
    with pytest.raises(ConfigError, match=r"^load_from\.revise_keys: pairs of a regular"):
        make_runner(**of_pairs(load_from={"checkpoint": "a", "revise_keys": [("(", "")]}))


def test_names_of_layers_alike_are_listed_once(make_runner, tmp_path):
    weights = {f"layers.{index}.weight": torch.ones(1) for index in range(30)}
    torch.save({**weights, **Net().state_dict()}, tmp_path / "more.pth")
    runner = make_runner(**of_pairs(load_from=str(tmp_path / "more.pth")))
    runner.load_or_resume()
    assert "unexpected: layers.*.weight (30 entries)" in log_of(runner)


class Inner(nn.Module):
    """Names one of its parts as the Runner names the whole."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8))
        self.net.fc, self.fc = nn.Linear(8, 3), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.fc(self.net(inputs))


def compiled():
    return nn.Sequential(torch.compile(nn.Linear(4, 8), backend="eager"), nn.Linear(8, 3))


@pytest.mark.parametrize("make_model", [Inner, compiled])
@pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 1.13 cannot compile")
def test_a_run_resumes_whatever_the_module_calls_its_parts(make_runner, make_model):
    make_runner(**of_pairs(model=make_model(), train_cfg={"max_epochs": 1})).train()
    runner = make_runner(**of_pairs(model=make_model(), resume=True))
    runner.train()
    assert runner.epoch == 2
    weights = make_model().state_dict()
    saved = load_checkpoint_file(runner.work_dir / "epoch_2.pth")["state_dict"]
    assert set(saved) == {name.replace("_orig_mod.", "") for name in weights}


def test_a_wrapped_model_takes_plain_weights(tmp_path):
    torch.save(Net().state_dict(), tmp_path / "plain.pth")
    model = Supervised(Net(), nn.functional.cross_entropy)
    load_checkpoint(nn.DataParallel(model), tmp_path / "plain.pth", strict=True)
    expected = torch.load(tmp_path / "plain.pth", weights_only=True)
    assert torch.equal(model.net.head.weight, expected["head.weight"])


# Freezing.


class Watch(Hook):
    """Notes, after each epoch, what has changed since the one before."""

    priority = "LOWEST"

    def __init__(self):
        self.changed = []

    def _state(self, runner):
        return {name: one.clone() for name, one in runner.model.state_dict().items()}

    def before_train_epoch(self, runner):
        self.before = self._state(runner)

    def after_train_epoch(self, runner):
        now = self._state(runner)
        changed = {name for name, one in now.items() if not torch.equal(one, self.before[name])}
        self.changed.append({re.search("backbone|head", name)[0] for name in changed})


def freezing(watch, num_epochs=None, **more):
    hooks = [FreezeHook("backbone.*", num_epochs), watch]
    return of_pairs(model=initial(), custom_hooks=hooks, train_cfg={"max_epochs": 3}, **more)


def test_frozen_parameters_and_statistics_stay_until_they_thaw(make_runner):
    always, at_first = Watch(), Watch()
    make_runner(**freezing(always)).train()
    assert always.changed == [{"head"}] * 3
    make_runner(**freezing(at_first, num_epochs=2)).train()
    assert at_first.changed == [{"head"}, {"head"}, {"backbone", "head"}]
    by_step = {"train_cfg": {"by_epoch": False, "max_iters": 9}}
    with pytest.raises(ConfigError, match=r"num_epochs: 1 was given, and the run has 1 "):
        make_runner(**{**freezing(Watch(), num_epochs=1), **by_step}).train()
    with pytest.raises(ConfigError, match=r"'bckbone\.\*' matches no parameter of Net; .* 8: back"):
        make_runner(**of_pairs(custom_hooks=[FreezeHook(["bckbone.*"])]))


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_a_run_that_resumes_freezes_what_was_frozen(make_runner, tmp_path, num_epochs):
    whole = make_runner(work_dir=tmp_path / "whole", **freezing(Watch(), num_epochs))
    whole.train()
    stopped = freezing(Watch(), num_epochs)
    stopped["custom_hooks"].append(StopBeforeEpoch(1))
    with pytest.raises(Killed):
        make_runner(**stopped).train()
    watch = Watch()
    rest = make_runner(resume=True, **freezing(watch, num_epochs))
    rest.train()
    assert watch.changed == [
        {"backbone", "head"} if num_epochs == 1 else {"head"},
        *watch.changed[1:],
    ]
    assert all(
        map(torch.equal, whole.model.state_dict().values(), rest.model.state_dict().values())
    )


def _freeze_on_ranks(_, tmp_path):
    expected = {None: [{"head"}] * 3, 2: [{"head"}, {"head"}, {"backbone", "head"}]}
    for num_epochs in (None, 2):
        watch, place = Watch(), tmp_path / f"{num_epochs}"
        cfg = {"loss": LOSS, "find_unused_parameters": num_epochs is not None}
        given = {**freezing(watch, num_epochs), "cfg": cfg, "launcher": "none"}
        runner = Runner(**runner_arguments(place, **given))
        runner.train()
        assert watch.changed == expected[num_epochs]
        weights = [torch.empty(8, 4) for _ in range(2)]
        torch.distributed.all_gather(weights, runner.model.module.net.backbone[0].weight.detach())
        assert torch.equal(*weights)
    given = {**freezing(Watch(), 2), "launcher": "none"}
    with pytest.raises(ConfigError, match=r"find_unused_parameters=True"):
        Runner(**runner_arguments(tmp_path / "refused", **given)).train()


def test_parameters_thaw_on_two_ranks(run_ranks, tmp_path):
    run_ranks(_freeze_on_ranks, 2, tmp_path)


# Names in checkpoints, where the weights are in the Runner's module.

EMA = {"type": "EMAHook", "momentum": 0.1}


def _sharded_run(place, *hooks, wrapper, **more):
    cfg = {"loss": LOSS, **({"model_wrapper_cfg": wrapper} if wrapper else {})}
    given = of_pairs(model=initial(), cfg=cfg, custom_hooks=[EMA, *hooks], **NO_VALIDATION)
    return Runner(**runner_arguments(place, **{**given, "launcher": "none", **more}))


def _on_ranks(rank, tmp_path):
    wrapper = {"type": "MMFullyShardedDataParallel", "auto_wrap_policy": ["Linear"]}
    _sharded_run(tmp_path / "copies", wrapper=None).train()
    with pytest.raises(Killed):
        _sharded_run(tmp_path / "shards", StopBeforeEpoch(1), wrapper=wrapper).train()
    _sharded_run(tmp_path / "shards", wrapper=wrapper, resume=True).train()
    torch.save({**Net(classes=10).state_dict()}, tmp_path / f"plain-{rank}.pth")
    torch.distributed.barrier()
    fresh = _sharded_run(tmp_path / "fresh", wrapper=wrapper, load_from=tmp_path / "plain-0.pth")
    fresh.load_or_resume()
    if rank == 0:
        assert "9 of the 11 entries" in log_of(fresh)


@needs_sharding
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_sharded_weights_have_the_names_of_the_module_as_well(run_ranks, tmp_path):
    run_ranks(_on_ranks, 2, tmp_path)
    copies, shards = (
        load_checkpoint_file(tmp_path / name / "epoch_2.pth") for name in ("copies", "shards")
    )
    assert list(shards["state_dict"]) == list(copies["state_dict"]) == list(Net().state_dict())
    for key in ("state_dict", "ema_state_dict"):
        for name, value in copies[key].items():
            torch.testing.assert_close(shards[key][name], value, msg=f"{key}.{name}")
    runner = _sharded_run(
        tmp_path / "shards", wrapper=None, resume=True, train_cfg={"max_epochs": 3}
    )
    runner.train()
    assert runner.epoch == 3
