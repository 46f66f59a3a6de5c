"""Loops, and their loaders, that a script asks for before it trains."""

import random

import pytest
import torch
from toy import NO_VALIDATION, Blobs, Classifier, Killed, StopBeforeEpoch, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop


class DrawnBlobs(Blobs):
    """Draws of all generators as it is made."""

    def __init__(self):
        super().__init__(24)
        self.inputs = self.inputs + torch.rand(4) + random.gauss(0, 1)


def weights(runner):
    return torch.cat([value.flatten() for value in runner.model.state_dict().values()])


def drawn_after(runner):
    """What the generators of a run would draw next."""
    return torch.rand(1), torch.rand(1, generator=runner.loader_generator), random.gauss(0, 1)


def ask(runner):
    assert runner.train_loop.dataloader is runner.train_dataloader


def look_at_a_batch(runner):
    assert set(next(iter(runner.train_dataloader))) == {"inputs", "labels"}


def evaluate_between(runner):
    ask(runner)
    runner.val()


def ask_for_all(runner):
    _ = runner.val_evaluator, runner.train_dataloader, runner.val_loop, runner.train_loop


DATA = {
    "plain": loader_cfg(),
    "drawn": loader_cfg(dataset={"type": DrawnBlobs}),
    "worker": loader_cfg(dataset=Blobs(noise=0.5), num_workers=1),
}


@pytest.mark.parametrize("by_epoch", [True, False], ids=["epochs", "steps"])
@pytest.mark.parametrize(
    ("data", "touch"),
    [
        ("plain", ask),
        ("drawn", ask),
        ("drawn", ask_for_all),
        ("drawn", evaluate_between),
        ("plain", look_at_a_batch),
        ("worker", look_at_a_batch),
    ],
)
def test_asking_for_the_training_loop_first_leaves_the_training_as_it_is(
    make_runner, by_epoch, data, touch
):
    loop = {"max_epochs": 2} if by_epoch else {"by_epoch": False, "max_iters": 10}
    options = {
        "model": {"type": Classifier, "dropout": 0.5},
        "train_dataloader": DATA[data],
        "train_cfg": loop,
    }
    plain = make_runner(**options)
    if touch is evaluate_between:
        plain.val()
    plain.train()
    expected = weights(plain), drawn_after(plain)
    runner = make_runner(**options)
    assert (runner.iter, runner.max_iters) == (0, 0)
    touch(runner)
    asked, loader = runner.train_loop, runner.train_dataloader
    assert type(asked) is (EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop)
    assert (runner.iter, runner.max_iters) == (0, plain.max_iters)
    runner.train()
    assert runner.train_loop is asked
    assert runner.train_dataloader is loader
    assert torch.equal(weights(runner), expected[0])
    assert drawn_after(runner) == expected[1]


def test_what_is_drawn_between_does_not_depend_on_it(make_runner):
    plain = make_runner(train_dataloader=DATA["drawn"])
    expected = drawn_after(plain)
    runner = make_runner(train_dataloader=DATA["drawn"])
    ask(runner)
    assert drawn_after(runner) == expected


def test_what_a_script_changes_in_the_loader_is_trained_on(make_runner):
    runner = make_runner(**NO_VALIDATION)
    runner.train_dataloader.dataset.inputs.zero_()
    seen = []

    class Look(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            seen.append(data_batch["inputs"].abs().sum().item())

    runner.register_hook(Look())
    runner.train()
    assert seen == [0.0] * 12


def test_each_training_has_a_loop_of_its_own(make_runner):
    runner = make_runner()
    first = runner.train_loop
    runner.train()
    assert runner.train_loop is first
    assert runner.iter == 12
    runner.train()
    assert runner.train_loop is not first
    assert runner.iter == 12


def test_evaluation_loops_are_built_when_they_are_asked_for(make_runner):
    runner = make_runner()
    assert runner.test_loop is None
    loop = runner.val_loop
    assert loop.evaluator is runner.val_evaluator
    runner.train()
    assert runner.val_loop is loop


@pytest.mark.parametrize("seed", [0, None], ids=["seed", "drawn-seed"])
@pytest.mark.parametrize("data", ["plain", "worker"])
def test_a_run_that_resumes_may_be_asked_for_its_loop_first(make_runner, tmp_path, seed, data):
    options = {
        "model": {"type": Classifier, "dropout": 0.5},
        "train_dataloader": DATA[data],
        "randomness": {"seed": seed},
        "custom_hooks": [StopBeforeEpoch(1)],
    }
    stopped = make_runner(**options)
    with pytest.raises(Killed):
        stopped.train()
    options["custom_hooks"] = []
    expected = make_runner(**options, resume=True)
    expected.train()
    (tmp_path / "run" / "last_checkpoint").write_text("epoch_1.pth")
    runner = make_runner(**options, resume=True)
    ask_for_all(runner)
    assert runner.seed == stopped.seed
    runner.val()
    look_at_a_batch(runner)
    asked = runner.train_loop
    runner.train()
    assert runner.train_loop is asked
    assert (runner.epoch, runner.iter) == (2, 12)
    assert torch.equal(weights(runner), weights(expected))


def test_a_seed_that_changes_after_the_loop_was_asked_for_is_refused(make_runner):
    runner = make_runner()
    ask(runner)
    runner.set_randomness(seed=3)
    with pytest.raises(ConfigError, match=r"^train_loop was asked for when .* was 0, .* is 3"):
        runner.train()
    runner.train()
    assert (runner.seed, runner.iter) == (3, 12)


def test_saving_builds_no_loop(make_runner, tmp_path):
    runner = make_runner()
    runner.save_checkpoint(tmp_path, "first.pth")
    assert runner.built_loop("train") is None
    runner.val()
    assert runner.built_loop("train") is None
