import pytest
import torch
from torch import nn
from toy import NO_VALIDATION, Classifier

from mm_amp import AmpOptimWrapper, OptimWrapper
from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import build_optim_wrapper


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def test_optim_wrapper_is_the_default_type(model):
    cfg = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2}
    before = {**cfg, "optimizer": dict(cfg["optimizer"])}
    wrapper = build_optim_wrapper(model, cfg)
    assert type(wrapper) is OptimWrapper
    assert type(wrapper.optimizer) is torch.optim.SGD
    assert wrapper.param_groups[0]["params"] == list(model.parameters())
    assert cfg == before


def test_other_types_come_by_name_or_class(model):
    optimizer = {"type": torch.optim.Adam}
    cfg = {"type": "AmpOptimWrapper", "optimizer": optimizer, "dtype": "bfloat16"}
    assert type(build_optim_wrapper(model, cfg)) is AmpOptimWrapper
    assert type(build_optim_wrapper(model, {**cfg, "type": AmpOptimWrapper})) is AmpOptimWrapper


def test_ready_wrappers_and_optimizers_are_taken_as_they_are(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = OptimWrapper(optimizer)
    assert build_optim_wrapper(model, wrapper) is wrapper
    assert build_optim_wrapper(model, {"optimizer": optimizer}).optimizer is optimizer


def test_frozen_parameters_are_kept_but_integers(model):
    model[0].requires_grad_(requires_grad=False)
    model.codes = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    wrapper = build_optim_wrapper(model, {"optimizer": {"type": "SGD", "lr": 0.1}})
    assert wrapper.param_groups[0]["params"] == [*model[0].parameters(), *model[1].parameters()]
    model.requires_grad_(requires_grad=False)
    with pytest.raises(ConfigError, match=r"optim_wrapper: Sequential has no parameter.*unfreeze"):
        build_optim_wrapper(model, {"optimizer": {"type": "SGD", "lr": 0.1}})


class Unfreeze(Hook):
    """Trains the first layer from the second epoch on."""

    def before_run(self, runner):
        runner.model.layers[0].requires_grad_(requires_grad=False)

    def before_train_epoch(self, runner):
        self.begins_with = runner.model.layers[0].weight.clone()
        if runner.epoch == 1:
            runner.model.layers[0].requires_grad_()


@pytest.mark.parametrize("optimizer", ["AdamW", "NpuFusedAdamW"])
@pytest.mark.filterwarnings("ignore:NpuFusedAdamW")
def test_what_is_unfrozen_later_is_trained_and_resumed(make_runner, tmp_path, optimizer):
    def run(epochs, **overrides):
        hook = Unfreeze()
        wrapper = {"optimizer": {"type": optimizer, "lr": 0.01}}
        cfg = {"max_epochs": epochs}
        runner = make_runner(
            custom_hooks=[hook], optim_wrapper=wrapper, train_cfg=cfg, **overrides, **NO_VALIDATION
        )
        initial = runner.model.layers[0].weight.clone()
        runner.train()
        return runner.model.layers[0].weight, hook.begins_with, initial

    _, begins_with, initial = run(1)
    assert torch.equal(begins_with, initial)
    resumed, begins_with, _ = run(3, resume=True)
    assert not torch.equal(resumed, begins_with)
    whole, _, _ = run(3, work_dir=tmp_path / "whole")
    assert torch.equal(resumed, whole)


@pytest.mark.parametrize(
    ("cfg", "error", "message"),
    [
        (3, ConfigError, r"optim_wrapper: an optim wrapper or a dict is needed, got 3"),
        (
            {"type": "OptimWrapper"},
            ConfigError,
            r"optim_wrapper\.optimizer: this key is missing; given: 'type'.*dict\(type='SGD'",
        ),
        (
            {"optimizer": {"type": "SDG"}},
            ComponentNotFoundError,
            r"No optimizer named 'SDG'.*Did you mean 'SGD'",
        ),
        (
            {"optimizer": {"type": "SGD", "lrr": 1}},
            ConfigError,
            r"optim_wrapper\.optimizer\.lrr: unknown argument of SGD.*Did you mean 'lr'",
        ),
        (
            {"type": "AmpOptimWraper", "optimizer": {"type": "SGD", "lr": 1}},
            ComponentNotFoundError,
            r"No optim wrapper named 'AmpOptimWraper'.*Did you mean.*'AmpOptimWrapper'",
        ),
        (
            {"clip_grads": {}, "optimizer": {"type": "SGD", "lr": 1}},
            ConfigError,
            r"optim_wrapper\.clip_grads: unknown argument of OptimWrapper.*'clip_grad'",
        ),
    ],
    ids=["number", "no-optimizer", "optimizer", "optimizer-key", "wrapper", "wrapper-key"],
)
def test_wrong_configs_are_named_by_their_path(model, cfg, error, message):
    with pytest.raises(error, match=message):
        build_optim_wrapper(model, cfg)


def test_a_model_may_give_an_optimizer_its_closure_itself(make_runner):
    class Closing(Classifier):
        def train_step(self, data, optim_wrapper):
            def closure():
                optim_wrapper.zero_grad()
                loss = self(**data, mode="loss")["loss"]
                loss.backward()
                return loss

            optim_wrapper.step(closure=closure)
            return {"loss": closure().detach()}

    model = Closing()
    first = model.layers[0].weight.detach().clone()
    ready = OptimWrapper(torch.optim.LBFGS(model.parameters()))
    make_runner(model=model, optim_wrapper=ready, **NO_VALIDATION).train()
    assert not torch.equal(model.layers[0].weight, first)
    built = {"optimizer": {"type": "LBFGS"}}
    runner = make_runner(model=Closing(), optim_wrapper=built, **NO_VALIDATION)
    runner.train()
    assert type(runner.optim_wrapper.optimizer) is torch.optim.LBFGS
