"""Scalars for Weights & Biases; wandb is stood in for where it is not installed."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from test_reporting_writers import RECORD

from mm_runner.reporting import WandbWriter


class Wandb(ModuleType):
    """Stands in for wandb: notes what is asked of it."""

    def __init__(self):
        super().__init__("wandb")
        self.calls = []

    def init(self, **arguments):
        self.calls.append(("init", arguments))
        return SimpleNamespace(
            log=lambda values: self.calls.append(("log", values)),
            define_metric=lambda *args, **kwargs: self.calls.append(("metric", args, kwargs)),
            finish=lambda: self.calls.append(("finish", {})),
        )


def wandb_calls(monkeypatch, tmp_path, **arguments):
    stand_in = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    (tmp_path / "config.yaml").write_text("work_dir: here\n")
    writer = WandbWriter(tmp_path, **arguments)
    assert stand_in.calls == [], "a network was asked while the run is built"
    writer.write(RECORD)
    writer.close()
    return stand_in.calls


def test_stand_in_wandb_gets_named_scalars_by_step_and_the_config(monkeypatch, tmp_path):
    init = {"project": "p", "name": "mine"}
    calls = wandb_calls(
        monkeypatch, tmp_path, init_kwargs=init, define_metric_cfg={"val/accuracy": "max"}
    )
    assert calls == [
        ("init", {"dir": str(tmp_path), **init, "config": {"work_dir": "here"}}),
        ("metric", ("step",), {}),
        ("metric", ("*",), {"step_metric": "step"}),
        ("metric", (), {"name": "val/accuracy", "summary": "max", "step_metric": "step"}),
        ("log", {"train/loss": 0.5, "epoch": 1, "step": 5}),
        ("finish", {}),
    ]


class Kept:
    """Keeps the records."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)


@pytest.mark.parametrize(
    ("train_cfg", "by_epoch", "axis"),
    [
        ({"max_epochs": 1}, True, "epoch"),
        ({"max_epochs": 1}, False, None),
        ({"by_epoch": False, "max_iters": 6, "val_interval": 6}, True, None),
    ],
    ids=["epochs", "epochs-by-step", "steps"],
)
def test_validations_are_drawn_by_epoch_where_that_was_asked_for(
    make_runner, train_cfg, by_epoch, axis
):
    kept = Kept()
    runner = make_runner(
        train_cfg=train_cfg,
        cfg={"log_writers": [kept]},
        default_hooks={"logger": {"log_metric_by_epoch": by_epoch, "interval": 3}},
    )
    runner.train()
    found = {record["mode"]: record.get("axis") for record in kept.records}
    assert found == {"train": None, "val": axis}
    assert '"axis"' not in (runner.log_dir / "scalars.jsonl").read_text()


@pytest.mark.skipif(
    getattr(find_spec("wandb"), "origin", None) is None, reason="needs the extra wandb"
)
@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(run_script, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path))
    # In a process of its own: wandb starts a service, and changes its process's environment.
    script = Path(__file__).with_name("toy.py").parent
    source = (
        "import sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        f"sys.path.insert(0, {str(script)!r})\n"
        "from toy import runner_arguments\n"
        "from mm_runner import Runner\n"
        "backend = dict(type='WandbVisBackend', init_kwargs=dict(project='p'))\n"
        "visualizer = dict(type='Visualizer', vis_backends=[backend])\n"
        "if __name__ == '__main__':\n"
        "    for number in range(2):\n"
        "        arguments = runner_arguments(f'{sys.argv[1]}/{number}', visualizer=visualizer)\n"
        "        Runner(**arguments).train()\n"
    )
    result = run_script(source, tmp_path / "run")
    assert result.returncode == 0, result.stderr
    assert "failed" not in result.stderr
    for number in range(2):
        (data,) = (tmp_path / "run" / str(number)).rglob("run-*.wandb")
        content = data.read_bytes()
        assert b"train/loss" in content
        assert b"val/accuracy" in content


def test_stand_in_a_run_that_somebody_else_began_goes_on(monkeypatch, tmp_path):
    for is_active in (False, True):
        stand_in = Wandb()
        active = stand_in.init()
        if is_active:
            stand_in.run = active
            stand_in.init = lambda active=active, **_: active
        monkeypatch.setitem(sys.modules, "wandb", stand_in)
        writer = WandbWriter(tmp_path, init_kwargs={"mode": "offline"})
        writer.write(RECORD)
        writer.close()
        writer.close()
        assert stand_in.calls.count(("finish", {})) == (0 if is_active else 1)
