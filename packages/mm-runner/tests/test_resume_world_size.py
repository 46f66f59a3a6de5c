"""Resuming with another number of processes: what is said, and that it may be refused."""

import pytest
import torch
from conftest import _enter_rank
from test_resume_midway import StopAfter
from torch.utils.data import Dataset
from toy import NO_VALIDATION, Killed, loader_cfg, runner_arguments

from mm_runner import ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.runner._other_processes import _how_to_keep

SGD = {"type": "SGD", "lr": 0.1}
RUN = {
    "train_dataloader": loader_cfg(48, batch_size=3),
    "train_cfg": {"max_epochs": 1},
    "optim_wrapper": {"optimizer": SGD, "accumulative_counts": 2},
    "default_hooks": {"checkpoint": None},
    "launcher": "none",
    **NO_VALIDATION,
}


def _by_two(_, work_dir):
    runner = Runner(**runner_arguments(work_dir, **RUN, custom_hooks=[StopAfter(4)]))
    with pytest.raises(Killed):
        runner.train()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The checkpoint of a run of two processes."""
    directory = tmp_path_factory.mktemp("two")
    args = (2, directory / "store", _by_two, (str(directory / "run"),))
    torch.multiprocessing.spawn(_enter_rank, args, nprocs=2)
    return directory / "run" / "iter_4.pth"


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def resume(make_runner, path, **changes):
    runner = make_runner(resume=True, load_from=str(path), **{**RUN, **changes})
    runner.train()
    return log_of(runner)


def test_a_checkpoint_says_what_a_step_takes(saved):
    batch = load_checkpoint_file(saved)["meta"]["batch"]
    assert batch == {"per_process": 3, "accumulated": {"": 2}}


def test_both_batches_the_rate_and_how_to_keep_the_batch_are_said(make_runner, saved):
    log = resume(make_runner, saved)
    assert (
        "The checkpoint was written by 2 process(es), this run has 1: the data continue after "
        "sample 24 of pass 1, each sample once. A step "
        "took 12 samples (3 of a process x 2 x 2 accumulated), and takes 6 (3 x 1 x 2), at a "
        "learning rate "
        "of 0.1. optim_wrapper.accumulative_counts=4 or train_dataloader.batch_size=6 keeps 12. "
        "Schedules and learning rates are left as they are." in log
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"optim_wrapper": {"optimizer": SGD, "accumulative_counts": 4}},
        {"train_dataloader": loader_cfg(48, batch_size=6)},
    ],
    ids=["accumulative_counts", "batch_size"],
)
def test_what_is_said_keeps_the_batch(make_runner, saved, changes):
    log = resume(make_runner, saved, **changes)
    assert "and takes 12 (" in log
    assert "keeps 12" not in log
    assert "after sample 24" in log


def test_where_one_number_alone_does_not_keep_it_both_are_named(make_runner, saved):
    changes = {
        "train_dataloader": loader_cfg(48, batch_size=5),
        "optim_wrapper": {"optimizer": SGD, "accumulative_counts": 5},
    }
    log = resume(make_runner, saved, **changes)
    assert "Neither accumulative_counts nor batch_size alone gives 12" in log
    assert "batch_size x accumulative_counts is 12" in log


def test_an_older_checkpoint_does_not_say_what_its_step_took(make_runner, saved, tmp_path):
    content = load_checkpoint_file(saved)
    del content["meta"]["batch"]
    torch.save(content, tmp_path / "older.pth")
    log = resume(make_runner, tmp_path / "older.pth")
    assert "A step took 12 samples if nothing else has changed (3 of a process x 2 x 2" in log


class Unbuildable(Dataset):
    def __init__(self):
        raise AssertionError("the data were built")


def test_it_may_be_refused_before_anything_is_built(make_runner, saved):
    with pytest.raises(
        ConfigError,
        match=r"on_world_size_change: 'error' was given; .* by 2 process\(es\), and this run has 1",
    ):
        resume(
            make_runner,
            saved,
            cfg={"on_world_size_change": "error"},
            train_dataloader={"dataset": {"type": Unbuildable}, "batch_size": 1},
        )
    with pytest.raises(ConfigError, match="on_world_size_change: 'keep' or 'error' is needed"):
        make_runner(cfg={"on_world_size_change": "rescale"})


def test_weights_alone_may_come_from_any_number(make_runner, saved):
    runner = make_runner(load_from=str(saved), **RUN, cfg={"on_world_size_change": "error"})
    runner.train()
    assert "The checkpoint was written by" not in log_of(runner)


def test_data_begun_anew_need_no_place(make_runner, saved):
    log = resume(make_runner, saved, cfg={"resume_data": False})
    assert "resume_data is False: the data continue with the beginning of epoch 1, in an" in log


@pytest.mark.parametrize(
    ("batch", "world_size", "advice"),
    [
        (5, 3, "With 3 processes no batch_size and accumulative_counts give 5: start a number of"),
        (12, 4, "batch_size x accumulative_counts is 3, or scale"),
        (10, 2, "train_dataloader.batch_size=5 keeps 10"),
    ],
    ids=["nothing-whole", "both", "one"],
)
def test_only_whole_numbers_are_advised(batch, world_size, advice):
    told = _how_to_keep(
        batch,
        "",
        per_process=5 if batch == 5 else 2,
        world_size=world_size,
        accumulated=2 if batch == 12 else 1,
    )
    assert advice in told
    assert "." not in told.replace("train_dataloader.", "").rstrip(".")
