"""Bodies of training loops that do things their own way: numbering, looking, drawing ahead."""

import itertools

import pytest
import torch
import torch.distributed as dist
from own_loops import (
    ElsewhereInIterations,
    OwnEpoch,
    OwnEpochAndStep,
    OwnIterations,
    OwnStep,
    PassAfterPass,
    train_cfg,
)
from stop_signals import take_usual
from test_own_bodies import RUN, Drawing, log_of
from test_resume_midway import Seen, StopAfter, assert_alike, state_of
from toy import NO_VALIDATION, Killed, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop

TRAINING = {**RUN, **NO_VALIDATION}
pytestmark = pytest.mark.usefixtures("handlers")


def resumed_midway(make_runner, loop, stop=8, *, times=1, **more):
    """Return a run with ``loop`` that was stopped after a step, and then trained to its end."""
    options = {**TRAINING, "train_cfg": {"type": loop, "max_epochs": 3}, **more}
    for index in range(times):
        runner = make_runner(
            **options, custom_hooks=[StopAfter(stop + 3 * index)], resume=index > 0
        )
        with pytest.raises(Killed):
            runner.train()
    seen = Seen()
    runner = make_runner(**options, custom_hooks=[seen], resume=True)
    runner.train()
    return runner, [index for index, *_ in seen.steps]


class BatchFirst(OwnStep):
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for index, batch in enumerate(self.dataloader):
            self.run_iter(batch, index)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def run_iter(self, data_batch, idx):
        super().run_iter(idx, data_batch)


class ByName(OwnStep):
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for index, batch in enumerate(self.dataloader):
            self.run_iter(data_batch=batch, batch_idx=index)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def run_iter(self, batch_idx, data_batch):
        super().run_iter(batch_idx, data_batch)


class BatchOnly(OwnStep):
    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for batch in self.dataloader:
            self.run_iter(batch)
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1

    def run_iter(self, data_batch):
        super().run_iter(self.iter % 6, data_batch)


class OtherName(OwnEpochAndStep):
    def run_iter(self, number, batch):
        super().run_iter(number, batch)


class PassingOn(OwnEpochAndStep):
    def run_iter(self, *arguments, **named):
        super().run_iter(*arguments, **named)


@pytest.mark.parametrize("own", [OwnEpoch, BatchFirst, ByName, BatchOnly, OtherName, PassingOn])
def test_a_resumed_epoch_numbers_its_batches_whatever_run_iter_takes(make_runner, own):
    assert resumed_midway(make_runner, own)[1] == [2, 3, 4, 5, *range(6)]


class OwnSource(OwnIterations):
    goes_forward = False

    def __init__(self, runner, dataloader, max_iters, **more):
        super().__init__(runner, dataloader, max_iters, **more)
        batch = {"inputs": torch.full((4, 4), 99.0), "labels": torch.zeros(4, dtype=torch.long)}
        self.dataloader_iterator = itertools.repeat(batch)


@pytest.mark.parametrize("is_assigned", [True, False])
def test_an_iterator_of_the_loops_own_stays(make_runner, is_assigned):
    class See(Hook):
        seen = ()

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            self.seen += (data_batch["inputs"].unique().item(),)

    see = See()
    cfg = {"type": OwnSource, "max_iters": 6}
    runner = make_runner(**TRAINING, train_cfg=cfg, custom_hooks=[see])
    if is_assigned:
        runner.train_loop = OwnSource(runner, runner.train_dataloader, 6)
    runner.train()
    assert see.seen == (99.0,) * 6


class MoreOfIt(IterBasedTrainLoop):
    def run_iter(self, data_batch):
        next(self.dataloader_iterator)
        super().run_iter(data_batch)


@pytest.mark.parametrize("loop", [OwnIterations, MoreOfIt])
def test_a_look_before_training_is_no_part_of_it(make_runner, loop):
    states = []
    for looks in (False, True):
        runner = make_runner(**TRAINING, train_cfg={"type": loop, "max_iters": 18})
        iterator = runner.train_loop.dataloader_iterator
        numbers = torch.get_rng_state()
        if looks:
            assert next(iterator)["inputs"].shape == (4, 4)
        torch.set_rng_state(numbers)
        runner.train()
        states.append(state_of(runner))
    assert_alike(states[1], states[0])


class Unannounced(OwnStep):
    """Lets no hook act at epochs."""

    def run_epoch(self):
        self.runner.model.train()
        for index, batch in enumerate(self.dataloader):
            self.run_iter(index, batch)
        self._epoch += 1


def test_a_run_whose_batches_nobody_announces_may_be_resumed_often(make_runner):
    runner, _ = resumed_midway(make_runner, Unannounced, times=3)
    # Each time the second epoch is trained anew.
    assert (runner.epoch, runner.iter) == (3, 8 + 3 + 3 + 12)
    for path in runner.work_dir.glob("iter_*.pth"):
        assert load_checkpoint_file(path)["meta"]["iter"] == int(path.stem[5:])


def test_nor_do_batches_of_a_list_keep_old_counts(make_runner):
    class Listed(ElsewhereInIterations):
        def run(self):
            self.runner.call_hook("before_train")
            batches = itertools.cycle(list(self.runner.train_dataloader))
            while self._iter < self._max_iters:
                self.run_iter(next(batches))
            self.runner.call_hook("after_train")

    runner, _ = resumed_midway(make_runner, Listed, train_cfg={"type": Listed, "max_iters": 18})
    assert load_checkpoint_file(runner.work_dir / "iter_18.pth")["meta"]["iter"] == 18
    assert runner.train_loop.state_dict()["iter"] == 18


class Peeking(OwnEpoch):
    def run_epoch(self):
        next(iter(self.dataloader))
        super().run_epoch()


class PeekingMidway(OwnEpochAndStep):
    def run_iter(self, idx, data_batch):
        super().run_iter(idx, data_batch)
        next(iter(self.dataloader))


@pytest.mark.parametrize("own", [Peeking, PeekingMidway])
def test_a_look_takes_nothing_from_workers_that_stay(make_runner, own):
    states = []
    for loop in (OwnEpoch, own):
        runner = make_runner(
            **{**RUN, "model": {"type": Drawing}, "train_dataloader": loader_cfg(num_workers=1)},
            train_cfg={"type": loop, "max_epochs": 2},
        )
        runner.train()
        assert runner.iter == 12
        states.append(runner.model.state_dict())
    if own is Peeking:
        assert_alike(states[1], states[0])


@pytest.mark.parametrize("own", [OwnEpoch, PassAfterPass])
def test_nor_does_a_hook_that_goes_through_the_data_in_the_first_step(make_runner, own):
    class Look(Hook):
        places = ()

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if runner.iter == 6:
                assert len(list(runner.train_loop.dataloader)) == 6

        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            data = runner.train_loop.state_dict()["data"]
            self.places += ((data["epoch"], data["batch"]),)

    look = Look()
    make_runner(**TRAINING, train_cfg=train_cfg(own), custom_hooks=[look]).train()
    assert look.places == tuple((epoch, 1 + batch) for epoch in range(3) for batch in range(6))


class Ahead(OwnStep):
    """Draws the next batch before each step."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        batches = iter(self.dataloader)
        following = next(batches, None)
        for index in itertools.count():
            batch, following = following, next(batches, None)
            self.run_iter(index, batch)
            if following is None:
                break
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


def test_a_body_that_draws_ahead_keeps_its_place(make_runner):
    runner, _ = resumed_midway(make_runner, Ahead, stop=8)
    assert "trains on batches that are not drawn" not in log_of(runner)
    data = load_checkpoint_file(runner.work_dir / "iter_8.pth")["data"]
    assert (data["epoch"], data["batch"]) == (1, 3)
    assert (runner.epoch, runner.iter) == (3, 17)  # what was drawn ahead counts as trained on


def test_a_resumed_epoch_that_is_asked_for_too_many_batches_says_so(make_runner):
    class Counting(OwnStep):
        def run_epoch(self):
            self.runner.call_hook("before_train_epoch")
            batches = iter(self.dataloader)
            for index in range(len(self.dataloader)):
                self.run_iter(index, next(batches))
            self.runner.call_hook("after_train_epoch")
            self._epoch += 1

    message = r"Counting asked for .* resumed after 2 of its batches\. .* in a for loop"
    with pytest.raises(ConfigError, match=message):
        resumed_midway(make_runner, Counting)


class OneEach(OwnStep):
    """Trains on one batch in each epoch."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        self.run_iter(0, next(iter(self.dataloader)))
        self.runner.call_hook("after_train_epoch")
        self._epoch += 1


class Preempt(Hook):
    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 2:
            runner.interruption.preempt()


def test_epochs_of_one_batch_leave_when_they_are_asked_to(make_runner):
    options = {**TRAINING, "default_hooks": {}, "train_cfg": {"type": OneEach, "max_epochs": 10}}
    runner = make_runner(**options, custom_hooks=[Preempt()])
    with pytest.raises(RunStopped):
        runner.train()
    assert (runner.epoch, runner.iter) == (3, 3)
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert (resumed.epoch, resumed.iter) == (10, 10)


class AheadOfValidation(OwnIterations):
    """Validates between drawing a batch and training on it."""

    validates = True

    def run(self):
        self.runner.call_hook("before_train")
        self.runner.call_hook("before_train_epoch")
        self.runner.model.train()
        batch = next(self.dataloader_iterator)
        while self._iter < self._max_iters:
            self.run_iter(batch)
            batch = next(self.dataloader_iterator)
            if self.validates and self._iter % 4 == 0:
                self.runner.val_loop.run()
                self.runner.model.train()
        self.runner.call_hook("after_train_epoch")
        self.runner.call_hook("after_train")


class AheadOfNothing(AheadOfValidation):
    validates = False


def test_a_validation_before_the_step_of_a_drawn_batch_changes_nothing(make_runner):
    states = []
    for loop in (AheadOfNothing, AheadOfValidation):
        cfg = {"type": loop, "max_iters": 12, "val_interval": 100}
        runner = make_runner(**{**RUN, "model": {"type": Drawing}}, train_cfg=cfg)
        runner.train()
        states.append(runner.model.state_dict())
    assert_alike(states[1], states[0])


class Unfinished(OwnStep):
    """Announces the beginnings of epochs, and not their ends."""

    def run_epoch(self):
        self.runner.call_hook("before_train_epoch")
        for index, batch in enumerate(self.dataloader):
            self.run_iter(index, batch)
        self._epoch += 1


def test_an_epoch_whose_end_nobody_announces_has_ended(make_runner):
    class SaveFirst(Hook):
        priority = "HIGHEST"

        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            if batch_idx == 0:
                runner.save_checkpoint(runner.work_dir, f"first_{runner.iter}.pth")

        @override
        def after_train(self, runner):
            runner.save_checkpoint(runner.work_dir, "end.pth")

    cfg = {"type": Unfinished, "max_epochs": 3}
    runner = make_runner(**TRAINING, train_cfg=cfg, custom_hooks=[SaveFirst()])
    runner.train()
    for name, epoch in (("first_6", 1), ("first_12", 2), ("end", 3)):
        content = load_checkpoint_file(runner.work_dir / f"{name}.pth")
        assert content["meta"]["epoch"] == content["data"]["epoch"] == epoch
        assert content["data"]["batch"] == 0


class OnMainOnly(EpochBasedTrainLoop):
    """Validates on one process, and the others go on."""

    def run(self):
        self.runner.call_hook("before_train")
        while self._epoch < self._max_epochs:
            self.run_epoch()
            if self.runner.rank == 0:
                self.runner.call_hook("before_val")
                self.runner.call_hook("after_val")
        self.runner.call_hook("after_train")


def _main_validates_alone(rank, work_dir):
    take_usual()
    cfg = {"type": OnMainOnly, "max_epochs": 2}
    loader = loader_cfg(batch_size=2)
    options = {**TRAINING, "train_dataloader": loader, "train_cfg": cfg}
    runner = Runner(**runner_arguments(str(work_dir / "run"), **options))
    runner.train()
    assert runner.epoch == 2
    if rank == 0:
        assert (work_dir / "run" / "last_validation").read_text().startswith("step 12 ")
    dist.barrier()


def test_one_process_may_validate_alone(run_ranks, tmp_path):
    run_ranks(_main_validates_alone, 2, tmp_path)
