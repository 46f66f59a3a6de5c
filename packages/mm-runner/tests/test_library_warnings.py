"""Warnings of our libraries are lines of the run's log, and not one bare line per process."""

import contextlib
import io
import logging

from test_distributed import Normalized
from toy import NO_VALIDATION, runner_arguments

from mm_runner import Runner

ACCUMULATING = {"optimizer": {"type": "SGD", "lr": 0.1}, "accumulative_counts": 2}
WARNING = "The model has BatchNorm layers and accumulative_counts is 2"


def _train(rank, work_dir):
    # As it is in a program: pytest's handlers would take the record.
    logging.getLogger().handlers.clear()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        model = {"type": Normalized}
        settings = {"model": model, "optim_wrapper": ACCUMULATING, "launcher": "none"}
        runner = Runner(**runner_arguments(work_dir, **settings, **NO_VALIDATION))
        runner.train()
    assert WARNING not in err.getvalue()
    told = [line for line in out.getvalue().splitlines() if WARNING in line]
    assert len(told) == (rank == 0)
    if rank == 0:
        assert f" WARNING {WARNING}" in told[0]
        log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
        assert log.count(WARNING) == 1
    assert logging.getLogger("mm_amp").handlers == []


def test_the_main_process_tells_what_all_of_them_would(run_ranks, tmp_path):
    run_ranks(_train, 2, tmp_path / "run")


def test_handlers_of_the_program_get_it_as_before(make_runner, caplog):
    make_runner(model={"type": Normalized}, optim_wrapper=ACCUMULATING, **NO_VALIDATION).train()
    assert [one.name for one in caplog.records if WARNING in one.message] == [
        "mm_amp._accumulation"
    ]
