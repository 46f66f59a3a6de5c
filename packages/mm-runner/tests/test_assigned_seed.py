"""A training loop that a script assigns draws its data by the seed that the run resumes with."""

import pytest
from toy import NO_VALIDATION, Blobs, Killed, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop

LOOP = {"max_epochs": 1}


class Seen(Blobs):
    """Notes which samples are drawn."""

    def __init__(self):
        super().__init__(24)
        self.indices = []

    @override
    def __getitem__(self, index):
        self.indices.append(index)
        return super().__getitem__(index)


class KillIn(Hook):
    priority = "LOWEST"

    def __init__(self, step):
        self.step = step

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == self.step:
            raise Killed


@pytest.fixture
def begin(make_runner):
    """``begin(**overrides)`` makes a run of one epoch without a seed of its own, and its data."""

    def begin(*hooks, **overrides):
        data = Seen()
        runner = make_runner(
            **{
                **NO_VALIDATION,
                "train_dataloader": loader_cfg(dataset=data),
                "train_cfg": LOOP,
                "randomness": {},
                "default_hooks": {"checkpoint": {"by_epoch": False, "interval": 3}},
                "custom_hooks": hooks,
                **overrides,
            }
        )
        return runner, data.indices

    return begin


@pytest.fixture
def killed(begin):
    """The samples of the first three steps, and the checkpoint after these."""
    runner, indices = begin(KillIn(4))
    runner.train_loop = runner.build_train_loop(LOOP)
    with pytest.raises(Killed):
        runner.train()
    return indices[:12], runner.work_dir / "iter_3.pth"


@pytest.mark.parametrize("seed", [None, 7], ids=["no-seed", "another-seed"])
def test_a_loop_that_is_built_before_a_resumed_training_goes_on(begin, killed, seed):
    runner, indices = begin(resume=True, randomness={"seed": seed})
    runner.train_loop = runner.build_train_loop(LOOP)
    runner.train()
    assert sorted(killed[0] + indices) == list(range(24))


def test_so_does_one_over_the_batches_that_were_asked_for(begin, killed):
    runner, indices = begin(resume=True)
    runner.train_loop = EpochBasedTrainLoop(runner, runner.train_dataloader, max_epochs=1)
    runner.train()
    assert sorted(killed[0] + indices) == list(range(24))


def build(runner):
    return runner.build_train_loop(LOOP)


def make(runner):
    loader = runner.build_dataloader(loader_cfg(dataset=Blobs()), seed=runner.seed)
    return EpochBasedTrainLoop(runner, loader, max_epochs=1)


@pytest.mark.parametrize("loop", [build, make])
def test_a_loop_that_is_older_than_the_seed_is_refused(begin, killed, loop):
    runner, indices = begin()
    runner.train_loop = loop(runner)
    runner.resume(killed[1])
    with pytest.raises(ConfigError, match=r"^train_loop was built with the seed .* another order"):
        runner.train()
    assert not indices
    runner.train_loop = runner.build_train_loop(LOOP)
    runner.train()
    assert sorted(killed[0] + indices) == list(range(24))


def test_a_loop_over_batches_that_are_older_than_the_seed_is_refused(begin, killed):
    runner, _ = begin()
    loader = runner.train_dataloader
    runner.resume(killed[1])
    build(runner)
    runner.train_loop = EpochBasedTrainLoop(runner, loader, max_epochs=1)
    with pytest.raises(ConfigError, match=r"^train_loop was asked for when the seed"):
        runner.train()


def test_a_loop_that_a_hook_assigns_goes_on(begin, killed):
    class Assign(Hook):
        @override
        def before_run(self, runner):
            runner.train_loop = build(runner)

    runner, indices = begin(Assign(), resume=True)
    runner.train()
    assert sorted(killed[0] + indices) == list(range(24))
