"""An iterator of batches that is assigned to a training loop as in MMEngine."""

import itertools

import pytest
from test_assigned_data import TRAINING, Switch, other_loader, sizes_of
from test_own_bodies import log_of
from test_resume_midway import StopAfter, assert_alike, state_of
from toy import NO_VALIDATION, Killed

from mm_runner import ConfigError
from mm_runner.loops import IterBasedTrainLoop

STEPS = {"by_epoch": False, "max_iters": 8}


def give_iterator(runner):
    runner.train_loop.dataloader_iterator = itertools.cycle(other_loader())


@pytest.mark.parametrize("with_loader", [False, True])
def test_an_iterator_that_a_hook_assigns_is_for_the_steps_that_follow(make_runner, with_loader):
    def act(runner):
        if with_loader:
            runner.train_loop.dataloader = other_loader()
        give_iterator(runner)

    switch = Switch(act, "after_train_iter", step=2)
    runner = make_runner(**NO_VALIDATION, train_cfg=STEPS, custom_hooks=[switch])
    assert sizes_of(runner) == [4] * 3 + [2] * 5
    assert "trains on batches of the dataloader_iterator that was assigned" in log_of(runner)
    assert runner.train_loop.state_dict()["data"]["batch"] == 0


def test_a_loader_amid_the_steps_needs_one(make_runner):
    def act(runner):
        runner.train_loop.dataloader = other_loader()

    switch = Switch(act, "after_train_iter", step=2)
    runner = make_runner(**NO_VALIDATION, train_cfg=STEPS, custom_hooks=[switch])
    assert sizes_of(runner) == [4] * 8
    assert log_of(runner).count("dataloader was assigned amid the steps") == 1


def test_so_is_one_that_a_loop_over_steps_makes_for_itself(make_runner):
    class Own(IterBasedTrainLoop):
        def __init__(self, runner, dataloader, max_iters, **more):
            super().__init__(runner, dataloader, max_iters, **more)
            self.dataloader_iterator = itertools.cycle(other_loader())

    runner = make_runner(**NO_VALIDATION, train_cfg={"type": Own, "max_iters": 8})
    assert sizes_of(runner) == [2] * 8


class Around:
    """An iterator around another one, with nothing but ``__next__``."""

    def __init__(self, batches):
        self.batches = batches

    def __next__(self):
        return next(self.batches)


def test_one_around_that_of_the_loop_keeps_the_place(make_runner, tmp_path):
    def put_around(runner):
        runner.train_loop.dataloader_iterator = Around(runner.train_loop.dataloader_iterator)

    states = []
    for stops in ((), (8,)):
        for stop in (*stops, None):
            hooks = [Switch(put_around), *([StopAfter(stop)] if stop else [])]
            runner = make_runner(
                **TRAINING,
                work_dir=tmp_path / str(stops),
                train_cfg={"type": IterBasedTrainLoop, "max_iters": 18},
                custom_hooks=hooks,
                resume=stop is None and bool(stops),
            )
            if stop:
                with pytest.raises(Killed):
                    runner.train()
            else:
                runner.train()
        states.append(state_of(runner))
        assert "dataloader_iterator" not in log_of(runner)
    assert_alike(states[1], states[0])


def test_an_iterator_that_ends_too_early_says_so(make_runner):
    def act(runner):
        runner.train_loop.dataloader_iterator = iter(other_loader())

    runner = make_runner(**NO_VALIDATION, train_cfg=STEPS, custom_hooks=[Switch(act)])
    with pytest.raises(ConfigError, match=r"has ended after step 6 of 8\. .* itertools\.cycle"):
        runner.train()


def test_what_is_no_iterator_is_refused(make_runner):
    runner = make_runner(**NO_VALIDATION, train_cfg=STEPS)
    with pytest.raises(ConfigError, match="DataLoader, which gives no batches by next"):
        runner.train_loop.dataloader_iterator = other_loader()


class MoreOfIt(IterBasedTrainLoop):
    def run_iter(self, data_batch):
        next(self.dataloader_iterator)
        super().run_iter(data_batch)


def test_a_look_of_a_hook_is_no_part_of_the_training(make_runner, tmp_path):
    places = []
    for looks in (False, True):
        look = Switch(lambda runner: looks and next(runner.train_loop.dataloader_iterator))  # noqa: B023
        runner = make_runner(
            **NO_VALIDATION,
            work_dir=tmp_path / str(looks),
            train_cfg={"type": MoreOfIt, "max_iters": 9},
            custom_hooks=[look],
        )
        runner.train()
        places.append(runner.train_loop.state_dict()["data"])
    assert places[0] == places[1]
    assert (places[0]["epoch"], places[0]["batch"]) == (2, 6)
