"""When a model's ``init_weights()`` is called, and that all processes begin alike."""

import pytest
import torch
import torch.distributed as dist
from test_distributed import is_equal_on_all_ranks
from test_resume_midway import train_whole_and_in_parts
from torch import nn
from toy import NO_VALIDATION, Classifier, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.hooks import Hook
from mm_runner.runner import verify_resume

_VERSION = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2]))


class Initialised(Classifier):
    """Counts the calls, and draws its first layer."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.num_calls = 0
        self.register_buffer("scale", torch.ones(3))

    def init_weights(self):
        self.num_calls += 1
        nn.init.normal_(self.layers[0].weight, std=0.3)
        nn.init.constant_(self.layers[0].bias, 7.0)
        self.layers[3].bias.data = torch.randn(3)
        self.scale.uniform_(0.5, 2.0)

    def forward(self, inputs, labels, mode="tensor"):
        return super().forward(inputs, labels, mode)


class Replacing(Classifier):
    def init_weights(self):
        self.layers[0].bias = nn.Parameter(torch.zeros(8))


class Noted(Hook):
    """Keeps a part of the weights as the first hook sees them."""

    priority = "HIGHEST"

    def __init__(self):
        self.first = self.trained_from = None

    @override
    def before_run(self, runner):
        self.first = runner.model.state_dict()["layers.0.bias"].clone()

    @override
    def before_train_epoch(self, runner):
        self.trained_from = runner.model.state_dict()["layers.0.bias"].clone()


def was_called(runner, times=1):
    text = next(runner.log_dir.glob("*.log")).read_text()
    assert text.count("Weights are what Initialised.init_weights() makes them.") == times
    return runner.model.num_calls == times


def test_it_is_called_once_as_the_first_training_begins(make_runner):
    seen = Noted()
    runner = make_runner(
        model={"type": Initialised}, train_cfg={"max_epochs": 1}, custom_hooks=[seen]
    )
    assert runner.model.num_calls == 0
    runner.val()
    assert was_called(runner, 0)
    runner.train()
    assert torch.equal(seen.first, torch.full((8,), 7.0))
    assert torch.equal(seen.trained_from, seen.first)
    runner.train()
    assert was_called(runner)


def test_an_evaluation_needs_none_though_training_is_configured(make_runner, tmp_path):
    torch.save(Classifier().state_dict(), tmp_path / "w.pth")
    runner = make_runner(model=Initialised(), load_from=str(tmp_path / "w.pth"))
    runner.val()
    assert was_called(runner, 0)


def test_what_is_loaded_comes_after_it_and_is_not_overwritten(make_runner, tmp_path):
    given = Classifier().state_dict()
    torch.save(given, tmp_path / "w.pth")
    load_from = str(tmp_path / "w.pth")

    options = {"model": {"type": Initialised}, "train_cfg": {"max_epochs": 1}}
    for number, (changes, calls, times) in enumerate(
        [
            ({"load_from": load_from}, {}, 1),
            ({"load_from": load_from}, {"val": ()}, 0),
            ({}, {"load_checkpoint": (load_from,)}, 0),
        ]
    ):
        seen = Noted()
        runner = make_runner(
            work_dir=tmp_path / str(number), custom_hooks=[seen], **options, **changes
        )
        for name, arguments in calls.items():
            getattr(runner, name)(*arguments)
        runner.train()
        assert torch.equal(seen.trained_from, given["layers.0.bias"])
        assert was_called(runner, times)


def test_weights_written_by_hand_stay_and_the_log_tells(make_runner):
    runner = make_runner(model=Initialised(), train_cfg={"max_epochs": 1}, **NO_VALIDATION)
    given = {name: torch.zeros_like(one) for name, one in runner.model.state_dict().items()}
    runner.model.load_state_dict(given)
    seen = Noted()
    runner.register_hook(seen)
    runner.train()
    assert torch.equal(seen.first, torch.zeros(8))
    assert was_called(runner, 0)
    assert (
        "Initialised.init_weights() is not called" in next(runner.log_dir.glob("*.log")).read_text()
    )


def test_new_parameters_are_trained_in_one_process(make_runner):
    runner = make_runner(model=Replacing(), train_cfg={"max_epochs": 1}, **NO_VALIDATION)
    runner.train()
    assert runner.model.layers[0].bias.abs().sum() > 0


@pytest.mark.usefixtures("group_of_one")
def test_new_parameters_are_refused_where_the_wrapper_knows_the_old_ones(make_runner):
    with pytest.raises(ConfigError, match=r"Replacing\.init_weights\(\) put new .*layers\.0\.b"):
        make_runner(model=Replacing(), train_cfg={"max_epochs": 1}, **NO_VALIDATION).train()


def test_resuming_is_exact_with_weights_that_are_drawn(make_runner, tmp_path):
    pytest.importorskip("numpy")

    def arguments():
        return {"model": {"type": Initialised, "dropout": 0.3}, **NO_VALIDATION}

    train_whole_and_in_parts(make_runner, tmp_path, arguments, [4, 6, None])
    report = verify_resume(
        runner_arguments(tmp_path / "unused", **arguments()), work_dir=tmp_path / "runs"
    )
    assert report.equal, str(report)


_CHANGES_THE_MODEL = ("MMSeparateDistributedDataParallel", "MMFullyShardedDataParallel")


def _begin_differently(_rank, work_dir):
    wrappers = [{}, {"type": "MMSeparateDistributedDataParallel"}, {"type": "UserWrapped"}]
    wrappers += [{"type": "MMFullyShardedDataParallel"}] if _VERSION >= (2, 8) else []
    for wrapper in wrappers:
        options = runner_arguments(
            f"{work_dir}/{wrapper.get('type', 'default')}",
            model=Initialised(),
            randomness={"seed": 1, "diff_rank_seed": True},
            train_cfg={"max_epochs": 1},
            cfg={"model_wrapper_cfg": wrapper},
            **NO_VALIDATION,
        )
        model = options["model"]
        if wrapper.get("type") == "UserWrapped":
            options |= {"cfg": {}, "model": nn.parallel.DistributedDataParallel(model)}
        runner = Runner(**options)
        assert model.num_calls == (wrapper.get("type", "") in _CHANGES_THE_MODEL)
        runner.initial_weights.begin_training(runner)
        assert model.num_calls == 1
        if hasattr(runner.model, "full_state_dict"):
            state = runner.model.full_state_dict(rank0_only=False)
            assert torch.equal(state["layers.0.bias"], torch.full((8,), 7.0))
            continue
        assert torch.equal(runner.model.state_dict()[_bias(runner)], torch.full((8,), 7.0))
        if wrapper.get("type") not in _CHANGES_THE_MODEL:  # whose own buffers are no child's
            assert is_equal_on_all_ranks(runner.model)
        drawn = torch.randn(1)
        others = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(others, drawn)
        assert not torch.equal(others[0], others[1])  # else equal weights would be no wonder
        if not wrapper:
            runner.train()
            assert model.num_calls == 1
            assert is_equal_on_all_ranks(model)


def _bias(runner):
    return next(name for name in runner.model.state_dict() if name.endswith("layers.0.bias"))


def test_all_processes_begin_with_the_first_ones_weights(run_ranks, tmp_path):
    run_ranks(_begin_differently, 2, str(tmp_path))
