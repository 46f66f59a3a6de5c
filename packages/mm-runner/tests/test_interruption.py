"""Signals, and other reasons to save or leave between two steps."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from stop_signals import take_usual
from toy import Classifier, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook

pytestmark = pytest.mark.usefixtures("handlers")

RUN = {"model": {"type": Classifier, "dropout": 0.3}, "train_cfg": {"max_epochs": 3}}


class SendAt(Hook):
    """Sends this process a signal at a stage, once the run has come to a step."""

    def __init__(self, number, stage="after_train_iter", at=8):
        self.number, self.stage, self.at = number, stage, at
        self.batches = 0

    def _maybe(self, runner, stage):
        if stage == self.stage and runner.iter >= self.at and self.number is not None:
            number, self.number = self.number, None
            os.kill(os.getpid(), number)

    @override
    def before_train(self, runner):
        self._maybe(runner, "before_train")

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self._maybe(runner, "after_train_iter")

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.batches += 1
        self._maybe(runner, "after_val_iter")

    @override
    def after_run(self, runner):
        self._maybe(runner, "after_run")


def parameters(runner):
    return {name: value.clone() for name, value in runner.model.state_dict().items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def stopped(runner):
    with pytest.raises(RunStopped) as info:
        runner.train()
    return info.value.code


@pytest.fixture
def whole(make_runner, tmp_path):
    """The parameters of a run that was never stopped."""
    runner = make_runner(work_dir=tmp_path / "whole", **RUN)
    runner.train()
    return parameters(runner)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)],
    ids=["SIGTERM", "SIGUSR1", "Ctrl-C"],
)
@pytest.mark.parametrize("in_background", [False, True], ids=["at-once", "asynchronous"])
def test_a_signal_saves_leaves_and_is_resumed_exactly(
    make_runner, whole, number, status, in_background
):
    hooks = {"checkpoint": {"async_save": in_background, "interval": 1, "max_keep_ckpts": 1}}
    runner = make_runner(**RUN, default_hooks=hooks, custom_hooks=[SendAt(number)])
    assert stopped(runner) == status
    assert runner.iter == 9
    # It counts among those that are kept.
    assert [path.name for path in runner.work_dir.glob("*.pth")] == ["iter_9.pth"]
    assert load_checkpoint_file(runner.work_dir / "iter_9.pth")["meta"]["iter"] == 9
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert f"epoch 1, step 9, with status {status}; saved" in log
    resumed = make_runner(**RUN, resume=True)
    resumed.train()
    assert_equal(parameters(resumed), whole)


def test_a_run_that_was_stopped_goes_on_when_it_is_trained_again(make_runner, whole):
    runner = make_runner(**RUN, custom_hooks=[SendAt(signal.SIGINT)])
    assert stopped(runner) == 130
    runner.train()
    assert (runner.epoch, runner.iter) == (3, 18)
    assert_equal(parameters(runner), whole)


def test_a_validation_is_cut_short_and_done_again(make_runner, whole):
    hook = SendAt(signal.SIGTERM, "after_val_iter", at=6)
    runner = make_runner(**RUN, custom_hooks=[hook])
    assert stopped(runner) == 75
    assert hook.batches == 1
    # The epoch's own checkpoint was written already.
    assert [path.name for path in runner.work_dir.glob("*.pth")] == ["epoch_1.pth"]
    counter = SendAt(None)
    resumed = make_runner(**RUN, resume=True, custom_hooks=[counter])
    resumed.train()
    assert counter.batches == 3 * 3
    assert_equal(parameters(resumed), whole)


@pytest.mark.parametrize("hook", [None, {"save_optimizer": False}], ids=["none", "weights"])
def test_a_run_without_a_hook_that_saves_all_of_it_is_saved_too(make_runner, hook):
    runner = make_runner(
        default_hooks={"checkpoint": hook}, custom_hooks=[SendAt(signal.SIGTERM, at=1)]
    )
    assert stopped(runner) == 75
    assert (runner.work_dir / "last_checkpoint").read_text() == "iter_2.pth\n"
    assert "optimizer" in load_checkpoint_file(runner.work_dir / "iter_2.pth")


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_run_leaves(make_runner, tmp_path):
    (tmp_path / "taken").write_text("a file where the directory should be")
    hooks = {"checkpoint": {"out_dir": str(tmp_path / "taken" / "out"), "interval": -1}}
    runner = make_runner(default_hooks=hooks, custom_hooks=[SendAt(signal.SIGTERM, at=1)])
    assert stopped(runner) == 75
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert "iter_2.pth failed" in log
    assert "the checkpoints before it are untouched" in log


def test_handlers_are_called_and_put_back(make_runner, handlers):
    seen = []

    def own(number, _):
        seen.append(number)
        raise SystemExit(3)

    signal.signal(signal.SIGTERM, own)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    runner = make_runner(train_cfg={"max_epochs": 1}, custom_hooks=[SendAt(signal.SIGUSR1, at=1)])
    runner.train()
    assert signal.getsignal(signal.SIGTERM) is own
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is handlers[signal.SIGINT]
    assert stopped(make_runner(custom_hooks=[SendAt(signal.SIGTERM)])) == 75
    assert seen == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN  # a launcher repeats itself


def test_a_signal_after_the_last_step_goes_to_whoever_was_there_before(make_runner):
    seen = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    runner = make_runner(custom_hooks=[SendAt(signal.SIGTERM, "after_run")])
    runner.train()
    assert runner.epoch == 2
    assert seen == [signal.SIGTERM] * 2


def test_off_the_main_thread_no_signal_is_handled_and_others_may_ask(make_runner, handlers):
    class Ask(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            assert signal.getsignal(signal.SIGTERM) is handlers[signal.SIGTERM]
            runner.interruption.preempt()

    codes = []
    runner = make_runner(custom_hooks=[Ask()])
    thread = threading.Thread(target=lambda: codes.append(stopped(runner)))
    thread.start()
    thread.join()
    assert codes == [75]
    assert runner.iter == 1


_SIGNALLED = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from toy import loader_cfg, runner_arguments
from mm_runner import Runner
from mm_runner.hooks import Hook

class Step(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 1:
            print("stuck" if sys.argv[2] == "stuck" else "ready", flush=True)
        while runner.iter == 1 and (sys.argv[2] == "stuck" or not runner.interruption.pending):
            time.sleep(0.01)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as in the foreground
    context = {{"multiprocessing_context": sys.argv[3]}} if sys.argv[3] else {{}}
    loader = loader_cfg(num_workers=2 if sys.argv[3] else 0, **context)
    Runner(**runner_arguments(
        sys.argv[1], custom_hooks=[Step()], train_dataloader=loader
    )).train()
"""


@pytest.fixture
def start(tmp_path):
    """``start(how, workers)`` starts a run in a process group of its own, as a shell would."""
    started = []

    def begin(how, workers=""):
        script = tmp_path / "signalled.py"
        script.write_text(_SIGNALLED.format(tests=str(Path(__file__).parent)))
        command = [sys.executable, str(script), str(tmp_path / "run"), how, workers]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        started.append(process)
        for line in process.stdout:
            if line.strip() in ("ready", "stuck"):
                return process
        raise AssertionError(process.stderr.read())

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_ctrl_c_leaves_at_once(start):
    process = start("stuck")
    os.killpg(process.pid, signal.SIGINT)
    while "Once more" not in process.stderr.readline():
        pass
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == -signal.SIGINT


@pytest.mark.parametrize(
    ("workers", "number"),
    [("fork", signal.SIGINT), ("spawn", signal.SIGTERM)],
    ids=["fork-Ctrl-C", "spawn-SIGTERM"],
)
def test_workers_leave_a_signal_to_the_group_to_the_main_process(start, tmp_path, workers, number):
    process = start("wait", workers)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else 75), errors
    assert "Traceback" not in errors
    assert (tmp_path / "run" / "last_checkpoint").read_text() == "iter_2.pth\n"


_LATE = """
import os, sys
from mm_runner.errors import RunStopped
from mm_runner.runner._interruption import StopSignals

class Late:
    # Called while the interpreter ends, when Python's own handlers are gone.
    def __del__(self, kill=os.kill, pid=os.getpid(), number=int(sys.argv[1])):
        kill(pid, number)

late = Late()
with StopSignals(lambda number: None):
    if sys.argv[2] == "leave":
        raise RunStopped(75)
"""


@pytest.mark.parametrize(
    ("number", "end", "status"),
    [(signal.SIGTERM, "leave", 75), (signal.SIGUSR1, "finish", -signal.SIGUSR1)],
    ids=["after-a-stop", "after-the-end"],
)
def test_signal_while_the_interpreter_ends_does_not_change_the_status(number, end, status):
    command = [sys.executable, "-c", _LATE, str(int(number)), end]
    assert subprocess.run(command, check=False).returncode == status


_ORPHANS = """
import os, signal, sys, time
from torch.utils.data import DataLoader
from mm_runner.data import ignore_stop_signals

def kill_the_main_process():
    main = os.getppid()
    print(os.getpid(), flush=True)
    if os.path.exists(sys.argv[1]):  # of the second worker: the first one is awaited
        os.kill(main, signal.SIGKILL)
        while os.getppid() == main:
            time.sleep(0.01)
    open(sys.argv[1], "w").close()

os.register_at_fork(after_in_child=kill_the_main_process, after_in_parent=lambda: time.sleep(0.5))
list(DataLoader(range(8), num_workers=2, multiprocessing_context="fork",
                worker_init_fn=ignore_stop_signals))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere torch's own watch has to do")
def test_no_worker_outlives_a_main_process_killed_while_it_starts_them(tmp_path):
    command = [sys.executable, "-c", _ORPHANS, str(tmp_path / "first")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    workers = [int(process.stdout.readline()) for _ in range(2)]
    try:
        # The pipe is open for as long as one of them lives.
        process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        raise
    assert process.returncode == -signal.SIGKILL


class CountBatches(Hook):
    batches = 0

    @override
    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.batches += 1


def _run(work_dir, **changes):
    return Runner(
        **runner_arguments(
            str(work_dir), **RUN, train_dataloader=loader_cfg(batch_size=2), **changes
        )
    )


def _same_on_all(value):
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return all(one == gathered[0] for one in gathered)


def _ranks_agree(rank, work_dir):
    torch.manual_seed(0)
    whole = _run(work_dir / "whole")
    whole.train()
    # By signal, stage, step and rank.
    for index, (number, stage, at, to) in enumerate(
        [
            (signal.SIGTERM, "after_train_iter", 2, 1),
            (signal.SIGUSR1, "after_train_iter", 8, 0),
            (signal.SIGINT, "after_val_iter", 6, 1),
            (signal.SIGTERM, "before_train", 0, 1),
        ]
    ):
        take_usual()
        own = work_dir / str(index)
        hook = SendAt(number if rank == to else None, stage, at)
        runner = _run(own, custom_hooks=[hook], default_hooks={"checkpoint": {"interval": 1}})
        assert stopped(runner) == (130 if number == signal.SIGINT else 75)
        assert _same_on_all(runner.iter)
        assert runner.iter >= at
        newest = (own / "last_checkpoint").read_text().strip()
        assert load_checkpoint_file(own / newest)["meta"]["iter"] == runner.iter
        resumed = _run(own, resume=True)
        resumed.train()
        assert_equal(parameters(resumed), parameters(whole))
    dist.barrier()


def test_ranks_agree_on_a_step_although_one_was_signalled(run_ranks, tmp_path):
    run_ranks(_ranks_agree, 2, tmp_path)
