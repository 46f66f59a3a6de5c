"""What a failed training leaves, and going back to the step that failed."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from crashing import Crashing
from toy import Classifier, log_of
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.cli import main
from mm_runner.hooks import Hook
from mm_runner.tools import replay_crash

_CONFIG = """
model: {type: "crashing:Crashing", at_step: 8}
train_dataloader:
  dataset: {type: "toy:Blobs", size: 24, noise: 0.5}
  batch_size: 4
  collate_fn: default_collate
train_cfg: {by_epoch: true, max_epochs: 4}
optim_wrapper: {optimizer: {type: Adam, lr: 0.1}}
work_dir: work
"""


@pytest.fixture
def crashed(tmp_path, monkeypatch):
    """The bundle of a run that failed in its ninth step, the third of the second epoch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    (tmp_path / "c.yaml").write_text(_CONFIG)
    assert main(["train", "c.yaml"]) == 1
    (bundle,) = Path("work").glob("*/crash")
    return bundle


def test_a_crash_leaves_what_is_needed_to_understand_it(crashed):
    facts = json.loads((crashed / "rank0.json").read_text())
    assert facts["error"]["type"] == "ArithmeticError"
    assert "in train_step" in facts["traceback"]
    assert (facts["iter"], facts["epoch"], facts["world_size"]) == (8, 1, 1)
    assert facts["batch"] == {
        "inputs": {"shape": [4, 4], "dtype": "float32", "device": "cpu"},
        "labels": {"shape": [4], "dtype": "int64", "device": "cpu"},
    }
    assert torch.__version__.startswith(facts["versions"]["torch"])
    assert "crashing:Crashing" in (crashed / "config.yaml").read_text()
    (log,) = crashed.parent.glob("*.log")
    command = f"mm-runner replay {crashed.absolute()}"
    assert (
        log.read_text()
        .splitlines()[-1]
        .endswith(f"Training failed in step 9 with ArithmeticError. To replay it: {command}")
    )


def test_a_replay_fails_just_so_and_touches_nothing_of_the_run(crashed, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in Path("work").glob("*.pth")}
    facts = json.loads((crashed / "rank0.json").read_text())
    seen = []
    monkeypatch.setattr(sys, "excepthook", lambda _, error, __: seen.append(error))
    assert main(["replay", str(crashed)]) == 1
    assert type(seen[0]) is ArithmeticError
    assert str(seen[0]) == facts["error"]["message"]
    assert {path: path.stat().st_mtime_ns for path in Path("work").glob("*.pth")} == before
    (log,) = (crashed / "replay").glob("*/*.log")
    assert re.search(r"Resuming from .*epoch_1\.pth", log.read_text())
    assert not list((crashed / "replay").rglob("crash"))
    # From the start, where no checkpoint is left.
    for path in before:
        path.unlink()
    Path("work/last_checkpoint").unlink()
    assert main(["replay", str(crashed)]) == 1
    assert str(seen[1]) == facts["error"]["message"]


def test_a_replay_goes_on_with_the_data_that_the_run_had_begun_anew(crashed, monkeypatch):
    seen = []
    step = Crashing.train_step

    def train_step(self, data, optim_wrapper):
        seen.append(data["inputs"].sum().item())
        return step(self, data, optim_wrapper)

    monkeypatch.setattr(Crashing, "train_step", train_step)
    # From the end of the first epoch; it fails in the third.
    resumed_command = ["train", "c.yaml", "--resume"]
    assert main([*resumed_command, "--cfg-options", "model.at_step=14"]) == 1
    failing = seen[-1]
    (bundle,) = (path for path in Path("work").glob("*/crash") if path != crashed)
    seen.clear()
    with pytest.raises(ArithmeticError):
        replay_crash(bundle)
    assert seen[-1] == failing
    assert len(seen) == 3  # from the end of the second epoch on


def test_a_bundle_that_others_may_write_needs_to_be_trusted(crashed, capsys):
    facts = crashed / "rank0.json"
    facts.chmod(0o666)
    assert main(["replay", str(crashed)]) == 1
    assert "imports and runs what the bundle names" in capsys.readouterr().err
    assert not (crashed / "replay").exists()
    with pytest.raises(ArithmeticError):
        replay_crash(crashed, trust=True)
    with pytest.raises(SystemExit):
        main(["replay", "--help"])
    assert "imports and runs" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("text", ["[" * 100_000, "[]"], ids=["deep", "list"])
def test_a_bundle_that_is_none_is_told_in_one_line(crashed, capsys, text):
    facts = crashed / "rank0.json"
    facts.write_text(text)
    assert main(["replay", str(crashed)]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_two_processes_replay_what_each_of_them_had(tmp_path, run_command):
    text = _CONFIG.replace("crashing:Crashing", "toy:Classifier").replace(
        "at_step: 8", "dropout: 0.5"
    )
    hooks = "custom_hooks: [{type: 'crashing:Raise', at_iter: 7}]\n"
    (tmp_path / "c.yaml").write_text(f"{text}{hooks}")

    def start(*arguments):
        done = run_command(*arguments, ranks=2)
        assert done.returncode == 1
        return done.stderr

    start("train", "c.yaml")
    (bundle,) = (tmp_path / "work").glob("*/crash")
    facts = [json.loads((bundle / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert [one["iter"] for one in facts] == [7, 7]
    messages = {one["error"]["message"] for one in facts}
    assert len(messages) == 2
    told = start("replay", bundle)
    assert all(f"ArithmeticError: {message}" in told for message in messages)


class FailsToPredict(Classifier):
    """Cannot be validated."""

    def val_step(self, data):
        raise ArithmeticError(len(data))


@pytest.mark.usefixtures("crashed")
def test_a_validation_that_fails_is_called_one_and_replayed(capsys, monkeypatch):
    loader = "{dataset: {type: 'toy:Blobs'}, batch_size: 4, collate_fn: default_collate}"
    Path("v.yaml").write_text(
        f"{_CONFIG.replace('crashing:Crashing', 'test_crash:FailsToPredict')}"
        f"val_dataloader: {loader}\nval_cfg: {{}}\nval_evaluator: {{type: Accuracy}}\n"
    )
    arguments = ["v.yaml", "--work-dir", "validated", "--cfg-options", "model._delete_=True"]
    assert main(["train", *arguments, "model.type=test_crash:FailsToPredict"]) == 1
    assert "failed in the validation after step 6 with Arithmetic" in capsys.readouterr().out
    (bundle,) = Path("validated").glob("*/crash")
    assert main(["replay", str(bundle)]) == 1
    monkeypatch.setattr(FailsToPredict, "val_step", Classifier.val_step)
    assert main(["replay", str(bundle)]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith("The validation after step 6 did not fail this time; it was Arith")


def test_a_run_of_objects_names_the_program_to_start_again(make_runner, tmp_path):
    runner = make_runner(model=Crashing(at_step=1), optim_wrapper={"optimizer": {"type": "Adam"}})
    with pytest.raises(ArithmeticError):
        runner.train()
    with pytest.raises(
        ConfigError, match=r"Crashing> was an object .* Start the program again: .*py"
    ):
        replay_crash(runner.log_dir / "crash")
    with pytest.raises(ConfigError, match=r"rank<N>\.json and config\.yaml is needed"):
        replay_crash(tmp_path)


def facts_of(runner):
    return json.loads((runner.log_dir / "crash" / "rank0.json").read_text())


class _Fail(Hook):
    def __init__(self, error):
        self.error = error

    @override
    def before_train(self, runner):
        raise self.error


def test_what_a_message_repairs_and_what_nobody_wants_leaves_no_bundle(make_runner, tmp_path):
    failing = {"custom_hooks": [_Fail(ConfigError("x: y"))]}
    with pytest.raises(ConfigError):
        make_runner(**failing).train()
    with pytest.raises(OSError, match="z"):
        make_runner(custom_hooks=[_Fail(OSError("z"))], cfg={"crash_bundle": False}).train()
    assert not list(tmp_path.rglob("crash"))


def test_a_disk_that_fails_too_does_not_hide_the_error(make_runner, capsys):
    runner = make_runner(custom_hooks=[_Fail(OSError("no space"))])
    (runner.log_dir / "crash").write_text("in the way")
    with pytest.raises(OSError, match="no space"):
        runner.train()
    assert "could not be written" in capsys.readouterr().out
    (runner.log_dir / "crash").unlink()
    with pytest.raises(OSError, match="no space"):
        runner.train()
    assert facts_of(runner)["batch"] == "NoneType"


def test_running_out_of_memory_tells_what_needs_less(make_runner):
    # As torch raises it where the device has no memory left.
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    runner = make_runner(custom_hooks=[_Fail(error)])
    with pytest.raises(torch.cuda.OutOfMemoryError):
        runner.train()
    line = log_of(runner).splitlines()[-1]
    assert "failed in step 1 with OutOfMemoryError. Less memory is needed by a smaller" in line
