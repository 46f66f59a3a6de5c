"""Own ``run_epoch`` and ``run`` in MMEngine's way: what checkpoints say, and going on from them."""

import random

import pytest
import torch
from own_loops import (
    OF_EPOCHS,
    OF_ITERATIONS,
    Choosing,
    Elsewhere,
    ElsewhereInIterations,
    EpochAfterEpoch,
    Looking,
    Merging,
    MergingInOurs,
    MergingIterations,
    OwnAll,
    OwnEpoch,
    OwnIterations,
    OwnRun,
    OwnStep,
    PassAfterPass,
    Twice,
    ours_of,
    train_cfg,
)
from test_resume_midway import Seen, StopAfter, assert_alike, state_of
from torch import nn
from toy import NO_VALIDATION, Blobs, Classifier, Killed, loader_cfg
from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.loops import EpochBasedTrainLoop
from mm_runner.model import BaseModel

NOISY = {"dataset": Blobs(24, noise=0.5)}
RUN = {
    "model": {"type": Classifier, "dropout": 0.5},
    "train_dataloader": loader_cfg(**NOISY),
    "param_scheduler": {"type": "CosineAnnealingLR", "by_epoch": False, "T_max": 18},
    "default_hooks": {"checkpoint": {"by_epoch": False, "interval": 1}},
}
OWN = [*OF_EPOCHS, *OF_ITERATIONS]
each_own = pytest.mark.parametrize("own", OWN, ids=[own.__name__ for own in OWN])


class Draw(Hook):
    """Draws a random number as an epoch begins and before each step."""

    @override
    def before_train_epoch(self, runner):
        torch.rand(3)

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        random.random()  # noqa: S311


class SaveAt(Hook):
    """Saves at a stage."""

    priority = "HIGHEST"  # those of ours must be no later

    def __init__(self, stage):
        self.stage = stage

    def _save(self, runner, stage):
        if stage == self.stage:
            runner.save_checkpoint(runner.work_dir, f"at_{runner.epoch}_{runner.iter}.pth")

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self._save(runner, "before_train_iter")

    @override
    def after_train_epoch(self, runner):
        self._save(runner, "after_train_epoch")


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def saved_by(make_runner, work_dir, loop, hook=None, **options):
    """Return what each checkpoint of a whole training says of where it is, and the run's end."""
    hooks = [Draw(), *([hook] if hook else [])]
    runner = make_runner(
        **{**RUN, "work_dir": work_dir, "custom_hooks": hooks, **options},
        train_cfg=train_cfg(loop),
    )
    runner.train()
    saved = {}
    for path in sorted(work_dir.glob("*.pth")):
        content = load_checkpoint_file(path)
        counts = {name: content["meta"][name] for name in ("epoch", "iter")}
        saved[path.name] = {"meta": counts, **{one: content[one] for one in ("data", "rng")}}
    return saved, state_of(runner)


@each_own
@pytest.mark.parametrize("validates", [True, False], ids=["validation", "training"])
def test_each_checkpoint_says_what_ours_says(make_runner, tmp_path, own, validates):
    options = {} if validates and own is not PassAfterPass else NO_VALIDATION
    expected, end = saved_by(make_runner, tmp_path / "ours", ours_of(own), **options)
    got, own_end = saved_by(make_runner, tmp_path / "own", own, **options)
    assert len(got) == 18
    assert_alike(plain(got), plain(expected))
    assert_alike(own_end, end)


def plain(content):
    """Lists, too, as dicts."""
    if isinstance(content, list):
        content = dict(enumerate(content))
    if isinstance(content, dict):
        return {name: plain(value) for name, value in content.items()}
    return content


@pytest.mark.parametrize("own", [*OF_EPOCHS, OwnStep])
@pytest.mark.parametrize("stage", ["before_train_iter", "after_train_epoch"])
def test_what_is_saved_at_other_stages_says_so_too(make_runner, tmp_path, own, stage):
    hooks = {"default_hooks": {"checkpoint": None}, **NO_VALIDATION}
    saved = [
        saved_by(make_runner, tmp_path / loop.__name__, loop, SaveAt(stage), **hooks)[0]
        for loop in (EpochBasedTrainLoop, own)
    ]
    assert len(saved[1]) == (18 if stage == "before_train_iter" else 3)
    assert_alike(plain(saved[1]), plain(saved[0]))


@each_own
@pytest.mark.parametrize("step", [1, 6, 8])
def test_it_goes_on_exactly(make_runner, tmp_path, own, step):
    whole_seen, seen = Seen(), Seen()
    options = {**RUN, **NO_VALIDATION, "train_cfg": train_cfg(own)}
    whole = make_runner(**options, work_dir=tmp_path / "whole", custom_hooks=[Draw(), whole_seen])
    whole.train()
    expected = state_of(whole)
    hooks = [Draw(), seen, StopAfter(step)]
    with pytest.raises(Killed):
        make_runner(**options, custom_hooks=hooks).train()
    torch.manual_seed(5)
    random.seed(5)
    resumed = make_runner(**options, custom_hooks=hooks[:2], resume=True)
    resumed.train()
    assert_alike(state_of(resumed), expected)
    # An own loop in one piece counts by itself, and hooks are told what it counts.
    of = slice(1 if own.__name__ == "InOnePiece" else 0, None)
    assert [one[of] for one in seen.steps] == [one[of] for one in whole_seen.steps]


@pytest.mark.parametrize("own", [EpochBasedTrainLoop, *OF_EPOCHS])
def test_it_goes_on_exactly_after_a_whole_epoch(make_runner, tmp_path, own):
    hooks = {"default_hooks": {"checkpoint": {"by_epoch": True, "interval": 1}}}
    options = {**RUN, **NO_VALIDATION, **hooks, "train_cfg": train_cfg(own)}
    whole = make_runner(**options, custom_hooks=[Draw()])
    whole.train()
    expected = state_of(whole)
    resumed = make_runner(
        **options,
        custom_hooks=[Draw()],
        work_dir=tmp_path / "resumed",
        load_from=str(whole.work_dir / "epoch_1.pth"),
        resume=True,
    )
    resumed.train()
    assert_alike(state_of(resumed), expected)


class Drawing(BaseModel):
    """Draws random numbers when it predicts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    def forward(self, inputs, labels, mode="tensor"):
        if mode == "predict":
            return self.layers(inputs) + torch.randn(3), labels
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


@pytest.mark.parametrize("own", [OwnRun, OwnAll, OwnIterations])
@pytest.mark.parametrize("step", [6, 8])
def test_validations_change_nothing_of_training(make_runner, tmp_path, own, step):
    options = {**RUN, "model": {"type": Drawing}}
    ends = []
    for name, loop in (("ours", ours_of(own)), ("own", own)):
        runner = make_runner(**options, work_dir=tmp_path / name, train_cfg=train_cfg(loop))
        runner.train()
        ends.append(state_of(runner))
    assert_alike(ends[1], ends[0])
    resumed = make_runner(
        **options,
        load_from=str(tmp_path / "own" / f"iter_{step}.pth"),
        resume=True,
        train_cfg=train_cfg(own),
    )
    resumed.train()
    assert_alike(state_of(resumed), ends[0])


def goes_on_exactly(make_runner, tmp_path, loop, stop=8):
    """Stop a run with ``loop`` after a step, go on, and compare with a whole one."""
    options = {**RUN, **NO_VALIDATION, "train_cfg": train_cfg(loop)}
    whole = make_runner(**options, work_dir=tmp_path / "whole")
    whole.train()
    expected = state_of(whole)
    with pytest.raises(Killed):
        make_runner(**options, custom_hooks=[StopAfter(stop)]).train()
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert_alike(state_of(resumed), expected)
    return resumed


@pytest.mark.parametrize("own", [Merging, MergingIterations, Choosing, Looking, EpochAfterEpoch])
@pytest.mark.parametrize("stop", [2, 7])
def test_what_a_step_has_drawn_is_done(make_runner, tmp_path, own, stop):
    resumed = goes_on_exactly(make_runner, tmp_path, own, stop)
    assert "trains on batches that are not drawn" not in log_of(resumed)
    # Each pass in its own order.
    assert resumed.train_loop.batches.epoch == (5 if own is MergingIterations else 2)


def test_a_step_of_ours_may_draw_more(make_runner, tmp_path):
    goes_on_exactly(make_runner, tmp_path, MergingInOurs)


class Through(Hook):
    """Goes through all of the training data after each step."""

    def __init__(self):
        self.seen = []

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        random_numbers = torch.get_rng_state()
        self.seen.append(sum(len(batch["labels"]) for batch in runner.train_dataloader))
        of_loop = sum(len(batch["labels"]) for batch in runner.train_loop.dataloader)
        assert of_loop == self.seen[-1]
        torch.set_rng_state(random_numbers)


@each_own
def test_a_hook_may_go_through_the_data_meanwhile(make_runner, own):
    loader = loader_cfg()
    states, through = [], Through()
    for hooks in ([], [through]):
        runner = make_runner(
            **{**RUN, **NO_VALIDATION, "train_dataloader": loader},
            train_cfg=train_cfg(own),
            custom_hooks=hooks,
        )
        runner.train()
        states.append(state_of(runner))
    assert through.seen == [24] * 18
    assert_alike(states[1], states[0])


def test_the_loader_that_a_loop_sees_is_the_loader(make_runner):
    runner = make_runner(train_cfg=train_cfg(OwnEpoch))
    seen, loader = runner.train_loop.dataloader, runner.train_dataloader
    assert isinstance(seen, torch.utils.data.DataLoader)
    assert type(loader) is torch.utils.data.DataLoader
    assert len(seen) == len(loader) == 6
    assert seen.dataset is loader.dataset
    seen.label = "set"
    assert loader.label == "set"
    assert len(list(seen)) == 6


@pytest.mark.parametrize("own", [Elsewhere, Twice, ElsewhereInIterations])
def test_batches_from_elsewhere_are_told_of_and_begin_anew(make_runner, own):
    options = {**RUN, **NO_VALIDATION, "train_cfg": train_cfg(own)}
    with pytest.raises(Killed):
        make_runner(**options, custom_hooks=[StopAfter(8)]).train()
    resumed = make_runner(**options, resume=True)
    resumed.train()
    assert log_of(resumed).count(f"{own.__name__} trains on batches that are not drawn") == 1
    content = load_checkpoint_file(resumed.work_dir / "iter_8.pth")
    by_epoch = issubclass(own, EpochBasedTrainLoop)
    epoch = {Elsewhere: 1, Twice: 0, ElsewhereInIterations: 0}[own]
    assert (content["data"]["epoch"], content["data"]["batch"]) == (epoch, 0)
    assert (content["meta"]["epoch"], content["meta"]["iter"]) == (epoch, 8)
    # Of epochs the one under way is trained anew.
    steps = {Elsewhere: 8 + 12, Twice: 8 + 36, ElsewhereInIterations: 18}[own]
    assert (resumed.epoch, resumed.iter) == (3 if by_epoch else 0, steps)


@pytest.mark.parametrize("own", [OwnRun, OwnAll, OwnIterations])
def test_the_validation_is_rehearsed_before_a_run_of_its_own(make_runner, own):
    stages = []

    class Note(Hook):
        @override
        def before_train(self, runner):
            stages.append("begins" if "could be validated" in log_of(runner) else "unknown")

    runner = make_runner(
        **RUN, train_cfg=train_cfg(own, sanity_val_batches=2), custom_hooks=[Note()]
    )
    runner.train()
    assert stages == ["begins"]
    assert log_of(runner).count("could be validated (train_cfg.sanity_val_batches)") == 1


def test_a_run_that_goes_on_to_ours_rehearses_once(make_runner):
    class Wrapping(EpochBasedTrainLoop):
        def run(self):
            super().run()
            return "done"

    runner = make_runner(**RUN, train_cfg=train_cfg(Wrapping, sanity_val_batches=1))
    assert runner.train() is runner.model
    assert log_of(runner).count("could be validated") == 1
    assert runner.iter == 18


def test_trainings_of_one_process_do_not_meet(make_runner):
    runner = make_runner(**RUN, **NO_VALIDATION, train_cfg=train_cfg(OwnAll))
    runner.train()
    number = len(runner.hooks)
    runner.train()
    assert len(runner.hooks) == number
    assert (runner.epoch, runner.iter) == (3, 18)
