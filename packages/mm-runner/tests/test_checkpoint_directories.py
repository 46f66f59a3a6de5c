"""Where checkpoints lie: the work directory, or a directory that several runs share."""

import multiprocessing
import time

import pytest
from test_checkpoint_hook import saved
from toy import Killed, Scripted, StopBeforeEpoch, runner_arguments
from typing_extensions import override

from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import CheckpointError, WorkDirError
from mm_runner.hooks import Hook


def run(work_dir, checkpoint, *, epochs=2, values=(0.5, 0.9, 0.7, 0.8), **overrides):
    runner = Runner(
        **runner_arguments(
            work_dir,
            train_cfg={"max_epochs": epochs},
            val_evaluator=Scripted(values=values),
            default_hooks={"checkpoint": checkpoint},
            **overrides,
        )
    )
    runner.train()
    return runner


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_runs_that_share_a_directory_keep_their_files_apart(tmp_path):
    out = tmp_path / "out"
    shared = {"out_dir": str(out), "save_best": "accuracy"}
    first = run(tmp_path / "a", {**shared, "filename_tmpl": "e{}.pth"}, values=(0.5, 0.9))
    second = run(tmp_path / "b", {**shared, "max_keep_ckpts": 1}, values=(0.7, 0.6))
    assert names_in(out) == ["a", "b"]
    assert names_in(out / "a") == ["best_accuracy.pth", "e1.pth", "e2.pth"]
    assert names_in(out / "b") == ["best_accuracy.pth", "epoch_2.pth"]
    assert load_checkpoint_file(out / "a" / "best_accuracy.pth")["meta"]["epoch"] == 2
    assert load_checkpoint_file(out / "b" / "best_accuracy.pth")["meta"]["epoch"] == 1
    assert saved(first) == saved(second) == []
    assert (first.work_dir / "last_checkpoint").read_text() == "../out/a/e2.pth\n"
    log = (first.log_dir / f"{first.timestamp}.log").read_text()
    assert [line for line in log.splitlines() if line.startswith("  checkpoints")] == [
        *[f"  checkpoints  {out / 'a'}"] * 2  # as training begins, and as it has ended
    ]


def test_a_run_whose_work_directory_is_reached_by_a_link_goes_on_from_out_dir(tmp_path):
    (tmp_path / "disk" / "deep" / "runs").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "runs").symlink_to(tmp_path / "disk" / "deep" / "runs")
    work_dir, saving = tmp_path / "project" / "runs" / "a", {"out_dir": str(tmp_path / "out")}
    run(work_dir, saving)
    # The disk and what is saved may be moved together.
    assert (work_dir / "last_checkpoint").read_text() == "../../../../out/a/epoch_2.pth\n"
    resumed = run(work_dir, saving, epochs=3, resume=True)
    log = (resumed.log_dir / f"{resumed.timestamp}.log").read_text()
    assert "Resumed after epoch 2" in log
    assert "Passing over" not in log


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
def test_a_run_from_the_start_leaves_the_checkpoints_of_another_alone(tmp_path, elsewhere):
    out = {"out_dir": str(tmp_path / "out"), "filename_tmpl": "e{}.pth"} if elsewhere else {}
    checkpoint = {"save_best": "accuracy", **out}
    first = run(tmp_path / "run", checkpoint)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pth")}
    for given in ({}, {"load_from": str(min(before))}):
        with pytest.raises(WorkDirError, match=r"\(last_.*--resume.*--work-dir.*--overwrite"):
            run(tmp_path / "run", checkpoint, overwrite=False, **given)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.pth")} == before
    first.train()  # it has come to its end
    # What does not train writes nothing over.
    Runner(**runner_arguments(tmp_path / "run")).val()


def test_overwriting_deletes_what_a_later_resumption_would_take_for_its_own(tmp_path):
    run(tmp_path / "run", {"save_best": "accuracy"}, epochs=4)
    kept = tmp_path / "run" / "epoch_4.pth"
    with pytest.raises(CheckpointError, match=r"none\.pth was asked for"):
        run(tmp_path / "run", {}, overwrite=True, load_from="none.pth")
    assert len(names_in(tmp_path / "run")) > 6
    with pytest.raises(Killed):
        run(
            tmp_path / "run",
            {},
            overwrite=True,
            load_from=str(kept),
            custom_hooks=[StopBeforeEpoch(1)],
        )
    assert {path.name for path in (tmp_path / "run").glob("*.pth")} == {"epoch_1.pth", kept.name}
    assert run(tmp_path / "run", {}, epochs=2, resume=True, overwrite=True).epoch == 2
    assert load_checkpoint_file(tmp_path / "run" / "epoch_2.pth")["meta"]["epoch"] == 2


class WaitForTheEnd(Hook):
    """Trains on and on."""

    @override
    def after_train_epoch(self, runner):
        (runner.work_dir / "trains").touch()
        time.sleep(60)


def _train_long(work_dir):
    run(work_dir, {}, custom_hooks=[WaitForTheEnd()])


def test_a_second_live_run_is_refused_and_one_after_a_kill_resumes(tmp_path):
    live = multiprocessing.get_context("spawn").Process(target=_train_long, args=(tmp_path,))
    live.start()
    try:
        while not (tmp_path / "trains").exists():
            assert live.is_alive()
            time.sleep(0.01)
        for options in ({"resume": True}, {}):
            with pytest.raises(WorkDirError, match=rf"in use: process {live.pid} on host "):
                run(tmp_path, {}, **options)
    finally:
        live.kill()
        live.join()
    assert run(tmp_path, {}, resume=True, overwrite=True).epoch == 2


def _refuse_on_all(rank, work_dir):
    del rank
    with pytest.raises(WorkDirError, match=r"epoch_1\.pth, epoch_2\.pth\), and this one starts"):
        run(work_dir, {}, overwrite=False)
    assert run(work_dir, {}, resume=True, epochs=3).epoch == 3


def test_every_rank_is_refused_alike(run_ranks, tmp_path):
    run(tmp_path / "run", {})
    run_ranks(_refuse_on_all, 2, tmp_path / "run")
