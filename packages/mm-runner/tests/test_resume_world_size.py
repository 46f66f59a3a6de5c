"""Messages of a run that resumes with another number of processes."""

import pytest
import torch
from conftest import _enter_rank
from test_resume_midway import StopAfter
from toy import NO_VALIDATION, Killed, loader_cfg, runner_arguments

from mm_runner import Runner

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


def test_another_number_of_processes_is_said(make_runner, saved):
    assert (
        "The checkpoint was written by 2 process(es), this run has 1: the data continue after "
        "sample 24 of pass 1, each sample once. "
        "Schedules and learning rates are left as they are." in resume(make_runner, saved)
    )


def test_data_of_another_length_are_named(make_runner):
    with pytest.raises(Killed):
        make_runner(custom_hooks=[StopAfter(8)]).train()
    resumed = make_runner(resume=True, train_dataloader=loader_cfg(40))
    resumed.train()
    assert (
        "written in a pass of 6 batches, which has 10 in this run: the dataset or the batch size "
        "has changed. The data continue after sample 8 of pass 2."
    ) in next(resumed.log_dir.glob("*.log")).read_text()
