"""What keeps scalars besides ``scalars.jsonl``."""

import gc
import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import pytest
from toy import NO_VALIDATION, runner_arguments

from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.errors import RunStopped
from mm_runner.hooks import Hook
from mm_runner.reporting import (
    JsonLinesWriter,
    writer_configs,
)

RECORD = {"mode": "train", "epoch": 1, "step": 5, "loss": 0.5, "note": "text"}


class Collects:
    """Keeps what it is given."""

    made: ClassVar = []

    def __init__(self, log_dir, prefix=""):
        self.log_dir, self.prefix, self.records = log_dir, prefix, []
        self.is_closed = False
        Collects.made.append(self)

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.is_closed = True


class Follows(Collects):
    """Records the calls that a training makes."""

    def resume(self):
        self.records.append("resume")

    def end(self, status):
        self.records.append(status)


class Breaks:
    """Cannot write."""

    def __init__(self, log_dir=None):
        self.log_dir = log_dir

    def write(self, record):
        raise OSError(f"the server of {record['mode']} is gone")

    def close(self):
        raise OSError("still gone")


def log_of(runner):
    return next(Path(runner.log_dir).glob("*.log")).read_text()


# Which writers.


def test_mmengines_names_and_plain_names_give_the_same_writers():
    backends = [
        {"type": "LocalVisBackend"},
        {"type": "TensorboardVisBackend"},
        {"type": "WandbVisBackend", "init_kwargs": {"project": "p"}},
        {"type": "MLflowVisBackend", "exp_name": "e"},
    ]
    assert writer_configs({"type": "DetLocalVisualizer", "vis_backends": backends}, None) == {
        "visualizer.vis_backends[1]": {"type": "TensorBoardWriter"},
        "visualizer.vis_backends[2]": {"type": "WandbWriter", "init_kwargs": {"project": "p"}},
        "visualizer.vis_backends[3]": {"type": "MLflowWriter", "exp_name": "e"},
    }
    mine = Breaks()
    assert writer_configs(
        None, ["TensorBoardWriter", "JsonLinesWriter", {"type": Breaks}, mine]
    ) == {
        "log_writers[0]": {"type": "TensorBoardWriter"},
        "log_writers[2]": {"type": Breaks},
        "log_writers[3]": mine,
    }
    both = writer_configs({"vis_backends": backends[1:2]}, "TensorboardVisBackend")
    assert list(both) == ["visualizer.vis_backends[0]"], (
        "a writer was asked for twice, and is twice"
    )
    assert writer_configs(None, None) == writer_configs({"type": "Visualizer"}, []) == {}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"visualizer": "Visualizer"}, ConfigError, r"^visualizer: a dict is needed, got 'Vis"),
        ({"cfg": {"log_writers": [5]}}, ConfigError, r"^log_writers\[0\]: .* got 5"),
        ({"cfg": {"log_writers": [{"typ": "X"}]}}, ConfigError, r"log_writers\[0\]: .*'type'"),
        (
            {"visualizer": {"vis_backends": [{"type": "ClearMLVisBackend"}]}},
            ComponentNotFoundError,
            r"visualizer\.vis_backends\[0\]\.type: No .* 'ClearMLVisBackend'; .* WandbWriter",
        ),
        (
            {"cfg": {"log_writers": [{"type": "WandbWriter", "projekt": "p"}]}},
            ConfigError,
            r"log_writers\[0\]\.projekt: unknown argument of WandbWriter",
        ),
        ({"cfg": {"log_writer": ["x"]}}, ConfigError, "Did you mean 'log_writers'"),
    ],
    ids=["visualizer", "number", "no-type", "not-there", "argument", "slip"],
)
def test_a_wrong_writer_ends_in_a_message_before_anything_is_built(
    make_runner, tmp_path, arguments, kind, message
):
    with pytest.raises(kind, match=message):
        make_runner(**arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("writer", "module", "extra"),
    [
        ("TensorBoardWriter", "torch.utils.tensorboard", "tensorboard"),
        ("WandbWriter", "wandb", "wandb"),
        ("MLflowWriter", "mlflow", "mlflow"),
    ],
)
def test_a_missing_extra_is_named_at_construction(make_runner, monkeypatch, writer, module, extra):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(
        ConfigError, match=rf"^log_writers\[0\]: {writer} needs .*{extra}.*'mm-runner\[{extra}\]'"
    ):
        make_runner(cfg={"log_writers": [writer]})


def build_without_extra(_, work_dir):
    sys.modules["wandb"] = None
    with pytest.raises(ConfigError, match=r"^log_writers\[0\]: WandbWriter needs wandb"):
        Runner(**runner_arguments(work_dir, cfg={"log_writers": ["WandbWriter"]}))


def test_a_missing_extra_ends_all_ranks(run_ranks, tmp_path):
    run_ranks(build_without_extra, 2, tmp_path)


# What they are given.


def test_a_writer_of_ones_own_gets_every_record(make_runner):
    Collects.made.clear()
    runner = make_runner(cfg={"log_writers": [{"type": Collects, "prefix": "x"}]})
    runner.train()
    (writer,) = Collects.made
    on_disk = (Path(runner.log_dir) / "scalars.jsonl").read_text().splitlines()
    given = [{name: one[name] for name in one if name != "axis"} for one in writer.records]
    assert given == [json.loads(line) for line in on_disk], "or train() came back early"
    assert {record["mode"] for record in writer.records} == {"train", "val"}
    assert (writer.log_dir, writer.prefix) == (runner.log_dir, "x")
    assert not writer.is_closed
    runner.val()
    assert len(writer.records) == len(on_disk) + 1
    del runner
    gc.collect()
    assert writer.is_closed


class EndsAfterAnEpoch(Hook):
    """Ends a training as an error, or as a scheduler does."""

    def __init__(self, how):
        self.how = how

    def before_train_epoch(self, runner):
        if runner.epoch == 1 and self.how == "failed":
            raise RuntimeError("as asked for")
        if runner.epoch == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(("status", "error"), [("failed", RuntimeError), ("killed", RunStopped)])
def test_writers_learn_how_a_training_ends_and_that_it_resumes(
    make_runner, handlers, status, error
):
    del handlers
    cfg = {"log_writers": [{"type": Follows}]}
    Collects.made.clear()
    runner = make_runner(cfg=cfg, custom_hooks=[EndsAfterAnEpoch(status)])
    with pytest.raises(error):
        runner.train()
    make_runner(cfg=cfg, resume=True).train()
    first, second = (writer.records for writer in Collects.made)
    assert first[-1] == status
    assert "resume" not in first
    assert second[0] == "resume"
    assert second[-1] == "finished"


def test_an_advertised_writer_is_found_by_name(make_runner, install_plugin):
    install_plugin(
        "my-writers",
        "[mm.log_writers]\nMine = my_writers:Mine\n",
        "class Mine:\n"
        "    def __init__(self, log_dir):\n"
        "        self.path = log_dir / 'mine.txt'\n"
        "    def write(self, record):\n"
        "        with self.path.open('a') as file:\n"
        "            file.write(record['mode'] + '\\n')\n",
    )
    runner = make_runner(cfg={"log_writers": "Mine"})
    runner.train()
    assert "val\n" in (Path(runner.log_dir) / "mine.txt").read_text()


# What they cannot do to a training.


def test_writers_that_fail_are_told_once_and_end_nothing(make_runner):
    runner = make_runner(cfg={"log_writers": [{"type": Breaks}]}, **NO_VALIDATION)
    (Path(runner.log_dir) / "scalars.jsonl").mkdir()  # what is opened for writing there fails
    runner.train()
    log = log_of(runner)
    assert log.count("Breaks failed: OSError: the server of train is gone. Training continues") == 1
    assert log.count("JsonLinesWriter failed: IsADirectoryError") == 1


def test_scalars_can_go_elsewhere_too(tmp_path):
    writer = JsonLinesWriter(tmp_path, save_dir=tmp_path / "new" / "folder")
    writer.write(RECORD)
    writer.close()
    assert json.loads((tmp_path / "new/folder/scalars.jsonl").read_text()) == RECORD


# TensorBoard and W&B themselves.


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs the extra tensorboard")
@pytest.mark.filterwarnings("ignore")  # of tensorboard's own dependencies
@pytest.mark.parametrize("by_epoch", [True, False], ids=["by-epoch", "by-step"])
def test_tensorboard_reads_the_scalars_that_a_run_wrote(make_runner, by_epoch):
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    backends = [{"type": "LocalVisBackend"}, {"type": "TensorboardVisBackend"}]
    runner = make_runner(
        visualizer={"type": "Visualizer", "vis_backends": backends},
        default_hooks={"logger": {"log_metric_by_epoch": by_epoch}},
    )
    runner.train()
    events = EventAccumulator(str(runner.log_dir)).Reload()
    assert {"train/loss", "train/lr", "train/time", "val/accuracy"} <= set(events.Tags()["scalars"])
    steps = [event.step for event in events.Scalars("val/accuracy")]
    assert steps == ([1, 2] if by_epoch else [6, 12])
    on_disk = (Path(runner.log_dir) / "scalars.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in on_disk if "loss" in line]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses)
    assert events.Tags()["tensors"] == ["config/text_summary"]
