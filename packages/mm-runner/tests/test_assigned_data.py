"""A loader that is assigned to a training loop as in MMEngine."""

import gc
import multiprocessing
import weakref

import pytest
from own_loops import OwnEpoch, PassAfterPass
from test_own_bodies import RUN, log_of
from test_resume_midway import StopAfter, assert_alike, state_of
from torch.utils.data import BatchSampler, DataLoader
from toy import NO_VALIDATION, Blobs, Killed, loader_cfg
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.data import InfiniteSampler
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop, IterBasedTrainLoop

TRAINING = {**RUN, **NO_VALIDATION}
LOOPS = [EpochBasedTrainLoop, OwnEpoch]


class Sizes(Hook):
    """Keeps the size of every batch."""

    def __init__(self):
        self.sizes = []

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.sizes.append(len(data_batch["inputs"]))


class Switch(Hook):
    """Lets ``act`` change the run at a stage, once it has come to an epoch and a step."""

    def __init__(self, act, stage="before_train_epoch", *, epoch=0, step=0):
        self.act, self.stage, self.epoch, self.step = act, stage, epoch, step

    def _at(self, runner, stage):
        if stage == self.stage and runner.epoch >= self.epoch and runner.iter >= self.step:
            self.stage = None
            self.act(runner)

    @override
    def before_train(self, runner):
        self._at(runner, "before_train")

    @override
    def before_train_epoch(self, runner):
        self._at(runner, "before_train_epoch")

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._at(runner, "after_train_iter")

    @override
    def after_train_epoch(self, runner):
        self._at(runner, "after_train_epoch")


def other_loader():
    return DataLoader(Blobs(12), batch_size=2)


def give_loader(runner, **options):
    cfg = {"dataset": Blobs(12, noise=0.5), "batch_size": 2, "collate_fn": "default_collate"}
    cfg["sampler"] = {"type": "DefaultSampler", "shuffle": True}
    loader = runner.build_dataloader({**cfg, **options}, seed=runner.seed)
    runner.train_loop.dataloader = loader


def sizes_of(runner):
    sizes = Sizes()
    runner.register_hook(sizes)
    runner.train()
    assert runner.iter == len(sizes.sizes)
    return sizes.sizes


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(
    ("stage", "epoch", "expected"),
    [
        ("before_train", 0, [2] * 12),
        ("before_train_epoch", 1, [4] * 6 + [2] * 6),
        ("after_train_iter", 0, [4] * 6 + [2] * 6),
        ("after_train_epoch", 0, [4] * 6 + [2] * 6),
    ],
)
def test_a_loader_that_a_hook_assigns_is_for_the_epochs_that_begin(
    make_runner, loop, stage, epoch, expected
):
    switch = Switch(give_loader, stage, epoch=epoch)
    cfg = {"type": loop, "max_epochs": 2}
    runner = make_runner(**NO_VALIDATION, train_cfg=cfg, custom_hooks=[switch])
    assert sizes_of(runner) == expected
    assert "not drawn" not in log_of(runner)
    assert runner.train_dataloader.batch_size == 2


@pytest.mark.parametrize("base", LOOPS)
def test_so_is_one_that_a_loop_makes_for_itself(make_runner, base):
    class Own(base):
        def __init__(self, runner, dataloader, **more):
            super().__init__(runner, dataloader, **more)
            self.dataloader = other_loader()

    cfg = {"type": Own, "max_epochs": 1}
    assert sizes_of(make_runner(**NO_VALIDATION, train_cfg=cfg)) == [2] * 6


def test_a_loader_that_is_given_up_keeps_no_data(make_runner):
    alive = []

    class Watch(Hook):
        first = None

        @override
        def after_train_epoch(self, runner):
            if self.first is None:
                self.first = weakref.ref(runner.train_dataloader.dataset)
                give_loader(runner)
            gc.collect()
            alive.append(self.first() is not None)

    cfg = {"type": EpochBasedTrainLoop, "max_epochs": 2}
    data = {**loader_cfg(), "dataset": {"type": Blobs}}
    make_runner(
        **NO_VALIDATION, train_cfg=cfg, train_dataloader=data, custom_hooks=[Watch()]
    ).train()
    assert alive == [True, False]


class InTuples:
    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return zip(self.loader)

    def __len__(self):
        return len(self.loader)


def test_a_body_of_its_own_may_put_something_around_what_it_was_given(make_runner):
    class Around(OwnEpoch):
        def __init__(self, runner, dataloader, **more):
            super().__init__(runner, list(dataloader), **more)
            self.dataloader = InTuples(self.dataloader)

        def run_iter(self, idx, data_batch):
            super().run_iter(idx, data_batch[0])

    runner = make_runner(**NO_VALIDATION, train_cfg={"type": Around, "max_epochs": 1})
    assert sizes_of(runner) == [4] * 6
    assert "not drawn" not in log_of(runner)


@pytest.mark.parametrize("make", [other_loader, lambda: [next(iter(other_loader()))] * 6])
def test_so_is_what_a_script_assigns(make_runner, make):
    runner = make_runner(**NO_VALIDATION)
    runner.train_loop.dataloader = make()
    assert sizes_of(runner) == [2] * 12


@pytest.mark.parametrize("loop", [PassAfterPass, IterBasedTrainLoop])
def test_a_loop_over_steps_takes_it_with_its_first_pass(make_runner, loop):
    runner = make_runner(**NO_VALIDATION, train_cfg={"type": loop, "max_iters": 8})
    runner.train_loop.dataloader = other_loader()
    assert sizes_of(runner) == [2] * 8


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_with_another_loader_goes_on_exactly(make_runner, tmp_path, loop, num_workers):
    def trained(stop=None, **options):
        switch = Switch(lambda runner: give_loader(runner, num_workers=num_workers), epoch=1)
        hooks = [switch, *([StopAfter(stop)] if stop else [])]
        cfg = {"type": loop, "max_epochs": 3}
        runner = make_runner(**TRAINING, train_cfg=cfg, custom_hooks=hooks, **options)
        if stop:
            with pytest.raises(Killed):
                runner.train()
        else:
            runner.train()
        return runner

    whole = state_of(trained(work_dir=tmp_path / "whole"))
    for stop in (3, 8, 12, 14):
        trained(stop, work_dir=tmp_path / str(stop))
        assert_alike(state_of(trained(work_dir=tmp_path / str(stop), resume=True)), whole)


@pytest.mark.parametrize("loop", LOOPS)
def test_workers_of_a_loader_that_is_given_up_end(make_runner, loop):
    class Count(Hook):
        workers = ()

        @override
        def after_train_epoch(self, runner):
            self.workers += (len(multiprocessing.active_children()),)

    count, staying = Count(), {"num_workers": 1, "persistent_workers": True}
    switch = Switch(lambda runner: give_loader(runner, **staying), epoch=1)
    runner = make_runner(
        **NO_VALIDATION,
        train_dataloader=loader_cfg(**staying),
        train_cfg={"type": loop, "max_epochs": 3},
        custom_hooks=[switch, count],
    )
    runner.train()
    assert len({*count.workers}) == 1
    assert len(multiprocessing.active_children()) == count.workers[0] - 1


@pytest.mark.parametrize("wrong", [None, {"batch_size": 2}])
def test_what_gives_no_batches_is_refused(make_runner, wrong):
    runner = make_runner(**NO_VALIDATION)
    with pytest.raises(ConfigError, match=r"^EpochBasedTrainLoop: .* which gives no batches"):
        runner.train_loop.dataloader = wrong


def test_an_epoch_gets_no_loader_without_end(make_runner):
    runner, data = make_runner(**NO_VALIDATION), Blobs()
    with pytest.raises(ConfigError, match="of which the first would not end"):
        runner.train_loop.dataloader = DataLoader(data, sampler=InfiniteSampler(data, seed=0))


def test_nor_one_that_can_be_gone_through_once(make_runner):
    runner = make_runner(**NO_VALIDATION)
    with pytest.raises(ConfigError, match="to be generator, which has no length"):
        runner.train_loop.dataloader = (batch for batch in other_loader())


@pytest.mark.parametrize(
    ("base", "length"), [(OwnEpoch, {"max_epochs": 1}), (IterBasedTrainLoop, {"max_iters": 6})]
)
def test_a_loop_may_put_it_there_before_it_is_made(make_runner, base, length):
    class Own(base):
        def __init__(self, runner, dataloader, **more):
            self.dataloader = dataloader
            super().__init__(runner, dataloader, **more)

    runner = make_runner(**NO_VALIDATION, train_cfg={"type": Own, **length})
    assert sizes_of(runner) == [4] * 6
    assert "not drawn" not in log_of(runner)


def test_workers_of_a_loader_that_another_one_draws_from_end(make_runner):
    class Through(InTuples):
        def __iter__(self):
            yield from self.loader

    staying = {"num_workers": 1, "persistent_workers": True}
    runner = make_runner(**NO_VALIDATION, train_dataloader=loader_cfg(**staying))
    before = len(multiprocessing.active_children())
    runner.train_loop.dataloader = Through(runner.train_loop.dataloader)
    assert sizes_of(runner) == [4] * 12
    assert len(multiprocessing.active_children()) == before


def begin_workers_anew(runner):
    """Do as MMDetection's hooks that switch the pipeline."""
    loader = runner.train_loop.dataloader
    loader._DataLoader__initialized = False
    loader._iterator = None
    loader._DataLoader__initialized = True


class Scaled(Blobs):
    scale = 1.0

    @override
    def __getitem__(self, index):
        return {**super().__getitem__(index), "scale": self.scale}


@pytest.mark.parametrize("has_validation", [False, True])
def test_workers_that_a_hook_lets_begin_anew_load_what_it_has_changed(make_runner, has_validation):
    scales = []

    class Seen(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            scales.append(data_batch.pop("scale")[0].item())

    def act(runner):
        runner.train_loop.dataloader.dataset.scale = 2.0
        begin_workers_anew(runner)

    staying = {"dataset": Scaled(), "num_workers": 1, "persistent_workers": True}
    make_runner(
        **({} if has_validation else NO_VALIDATION),
        train_dataloader={**loader_cfg(), **staying},
        custom_hooks=[Switch(act, epoch=1), Seen()],
    ).train()
    assert scales == [1.0] * 6 + [2.0] * 6


class Numbered(Blobs):
    @override
    def __getitem__(self, index):
        return {**super().__getitem__(index), "number": index}


class Buckets(BatchSampler):
    """Batches of alike samples, as detectors draw them; what is left in a bucket is its own."""

    def __init__(self, sampler, batch_size):
        super().__init__(sampler, batch_size, drop_last=False)
        self.buckets = [], []

    @override
    def __iter__(self):
        for index in self.sampler:
            bucket = self.buckets[index % 2]
            bucket.append(index)
            if len(bucket) == self.batch_size:
                yield bucket[:]
                bucket.clear()
        left = [index for bucket in self.buckets for index in bucket]
        self.buckets = [], []
        for start in range(0, len(left), self.batch_size):
            yield left[start : start + self.batch_size]


def test_a_pass_that_a_hook_gives_up_takes_nothing_from_batch_samplers(make_runner):
    numbers = []

    class Seen(Hook):
        @override
        def before_train_iter(self, runner, batch_idx, data_batch=None):
            numbers.extend(data_batch.pop("number").tolist())

    data = {**loader_cfg(), "dataset": Numbered(), "num_workers": 1, "persistent_workers": True}
    del data["batch_size"]
    data["sampler"] = {"type": "DefaultSampler", "shuffle": True}
    data["batch_sampler"] = {"type": Buckets, "batch_size": 4}
    hooks = [Switch(begin_workers_anew, epoch=1), Seen()]
    make_runner(train_dataloader=data, custom_hooks=hooks).train()
    assert [sorted(numbers[:24]), sorted(numbers[24:])] == [[*range(24)]] * 2
