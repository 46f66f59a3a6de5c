"""The command, mostly in this process; statuses and several ranks in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from toy import Classifier

from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.cli import main
from mm_runner.config import Config
from mm_runner.model import BaseModel

_CONFIG = """
model: {type: "toy:Classifier"}
train_dataloader: &loader
  dataset: {type: "toy:Blobs", size: 24}
  batch_size: 4
  collate_fn: default_collate
train_cfg: {by_epoch: true, max_epochs: 2}
optim_wrapper: {optimizer: {type: SGD, lr: 0.1}}
val_dataloader: *loader
val_cfg: {}
val_evaluator: {type: Accuracy}
test_dataloader: *loader
test_cfg: {}
test_evaluator: {type: Accuracy}
randomness: {seed: 0}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration in the current directory; what the command does to ``sys.path`` is undone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "toy_run.yaml").write_text(_CONFIG)
    return "toy_run.yaml"


def test_train_test_and_resume_go_through_the_command(config, tmp_path, capsys):
    assert main(["train", config]) == 0
    work_dir = tmp_path / "work_dirs" / "toy_run"
    assert load_checkpoint_file(work_dir / "epoch_2.pth")["meta"]["iter"] == 12

    metrics = tmp_path / "metrics.json"
    arguments = ["test", config, str(work_dir / "epoch_2.pth"), "--work-dir", "tested"]
    assert main([*arguments, "--out", str(metrics)]) == 0
    accuracy = json.loads(metrics.read_text())["accuracy"]
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == f"accuracy: {accuracy}"
    assert "Epoch(test)  [2][6/6]" in output
    assert not list((tmp_path / "tested").glob("*.pth"))

    assert main(["train", config, "--resume", "--cfg-options", "train_cfg.max_epochs=3"]) == 0
    assert "Resuming from" in capsys.readouterr().out
    first = str(work_dir / "epoch_1.pth")
    assert main(["train", config, "--resume", first, "--work-dir", "again"]) == 0
    ends = [
        load_checkpoint_file(path) for path in (work_dir / "epoch_2.pth", Path("again/epoch_2.pth"))
    ]
    assert all((ends[0]["state_dict"][k] == v).all() for k, v in ends[1]["state_dict"].items())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--amp"], {"optim_wrapper.type": "AmpOptimWrapper"}),
        (["--amp", "bfloat16"], {"optim_wrapper.dtype": "bfloat16"}),
        (["--compile"], {"compile": True}),
        (["--work-dir", "elsewhere"], {"work_dir": "elsewhere"}),
        ([], {"work_dir": os.path.join("work_dirs", "toy_run")}),  # noqa: PTH118
        (["--resume"], {"resume": True, "load_from": None}),
        (["--resume", "auto"], {"resume": True, "load_from": None}),
        (["--resume", "a.pth"], {"resume": True, "load_from": "a.pth"}),
        (["--launcher", "none", "--local_rank=0"], {"launcher": "none"}),
        (["--local-rank", "0"], {}),
        (
            ["--cfg-options", "auto_scale_lr.base_batch_size=8", "--auto-scale-lr"],
            {"auto_scale_lr.enable": True, "auto_scale_lr.base_batch_size": 8},
        ),
        (
            ["--cfg-options", "train_dataloader.dataset.size=8", "visualizer.b=[1,x]"],
            {"visualizer.b": [1, "x"]},
        ),
    ],
    ids=lambda value: "_".join(value) if isinstance(value, list) else "",
)
def test_what_the_command_line_changes_reaches_the_runner(config, monkeypatch, arguments, expected):
    seen = []

    class Recorded(Exception):  # noqa: N818 - stops before anything is built
        pass

    def record(cfg):
        seen.append(cfg)
        raise Recorded

    monkeypatch.setattr(Runner, "from_cfg", record)
    monkeypatch.setattr(sys, "excepthook", lambda *_: None)
    assert main(["train", config, *arguments]) == 1
    for path, value in expected.items():
        found = seen[0]
        for key in path.split("."):
            found = found[key]
        assert found == value


def test_amp_is_switched_for_each_of_several_optimizers(config, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Runner, "from_cfg", lambda cfg: seen.append(cfg) or Runner)
    monkeypatch.setattr(Runner, "train", lambda: None)
    cfg = Config.fromfile(config)
    one = cfg.optim_wrapper
    cfg.optim_wrapper = {"constructor": "MultiOptimWrapperConstructor", "a": one, "b": one}
    cfg.dump(tmp_path / "several.yaml")
    assert main(["train", "several.yaml", "--amp"]) == 0
    assert seen[0].optim_wrapper.a.type == seen[0].optim_wrapper.b.type == "AmpOptimWrapper"
    assert seen[0].optim_wrapper.constructor == "MultiOptimWrapperConstructor"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.yaml"], r"absent.yaml does not exist"),
        (["toy_run.yaml", "--auto-scale-lr"], "auto_scale_lr.base_batch_size: --auto-scale-lr was"),
        (
            ["toy_run.yaml", "--amp", "--cfg-options", "optim_wrapper.type=Odd"],
            "toy_run.yaml:8: optim_wrapper.type: --amp was given",
        ),
        (
            ["toy_run.yaml", "--cfg-options", "optim_wrapper.optimizer.lrr=1"],
            "toy_run.yaml:8: optim_wrapper.optimizer.lrr: unknown argument of SGD",
        ),
        (
            ["toy_run.yaml", "--cfg-options", "optim_wrapper.clip_grad.max_norm=text"],
            "toy_run.yaml:8: optim_wrapper.clip_grad",
        ),
        (["toy_run.yaml", "--cfg-options", "compile.mode=3"], "toy_run.yaml: compile.mode"),
        (["toy_run.yaml", "--resume", "none.pth"], "none.pth"),
        (["toy_run.yaml", "--launcher", "pytorch"], "torchrun"),
        (
            ["toy_run.yaml", "--cfg-options", "train_dataloader.dataset.size=0"],
            "empty",
        ),
    ],
    ids=[
        *("no-file", "no-base-batch", "amp-type", "slip", "clipping", "compile", "checkpoint"),
        *("launcher", "empty"),
    ],
)
def test_what_the_user_can_repair_is_one_message(config, capsys, arguments, message):
    del config
    assert main(["train", *arguments]) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.startswith("mm-runner: ")
    assert "Traceback" not in errors
    assert main(["train", *arguments, "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_losses_that_cannot_be_used_are_one_message_and_no_crash(config, capsys, write):
    write(
        "odd_model.py",
        "from toy import Classifier\nclass Odd(Classifier):\n"
        "    def forward(self, *args, mode='tensor', **kwargs):\n        return {'loss': 0.3}\n",
    )
    assert main(["train", config, "--cfg-options", "model.type=odd_model:Odd"]) == 1
    errors = capsys.readouterr().err
    assert "mm-runner: forward(mode='loss') of Odd returned 'loss': 0.3; a tensor" in errors
    assert "Traceback" not in errors
    assert not list(Path.cwd().rglob("crash"))


def test_wrong_usage_is_status_2(config, capsys):
    for arguments in ([], ["tarin"], ["train"], ["train", config, "--launcher", "x"], ["plot"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_is_status_130(config, capsys, monkeypatch):
    def interrupt(cfg):
        raise KeyboardInterrupt(cfg)

    monkeypatch.setattr(Runner, "from_cfg", interrupt)
    assert main(["train", config]) == 130
    assert capsys.readouterr().err == "mm-runner: interrupted\n"


def test_the_users_own_exceptions_are_shown_in_full(config, tmp_path, run_command):
    (tmp_path / "broken_model.py").write_text(
        "from toy import Classifier\nclass Broken(Classifier):\n"
        "    def forward(self, *args, **kwargs):\n        raise RuntimeError('out of cheese')\n"
    )
    done = run_command("train", config, "--cfg-options", "model.type=broken_model:Broken")
    assert done.returncode == 1
    assert "out of cheese" in done.stderr
    assert "broken_model.py" in done.stderr
    assert "Traceback" in done.stderr


def test_modules_beside_the_config_and_in_the_current_folder_are_found(config, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "models_here.py").write_text("from toy import Classifier as Here")
    (tmp_path / "configs" / "data_beside.py").write_text("from toy import Blobs as Beside")
    text = Path(config).read_text().replace("toy:Classifier", "models_here:Here")
    (tmp_path / "configs" / "c.yaml").write_text(text.replace("toy:Blobs", "data_beside:Beside"))
    assert main(["train", "configs/c.yaml", "--cfg-options", "train_cfg.max_epochs=1"]) == 0
    for name in ("models_here", "data_beside"):
        del sys.modules[name]


def test_modules_that_options_name_are_imported(config, write, capsys):
    write(
        "more_models.py",
        "import toy\nfrom mm_runner.registry import MODELS\n"
        "MODELS.register_module(name='More', module=toy.Classifier)\n",
    )
    options = ["--cfg-options", "model.type=More", "custom_imports.imports=[more_models]"]
    assert main(["check", config, *options]) == 0
    del sys.modules["more_models"]
    options[-1] = "custom_imports.imports=[absent_one]"
    assert main(["check", config, *options]) == 1
    assert "custom_imports.imports[0]: the module 'absent_one' cannot" in capsys.readouterr().err


def test_a_wrong_configuration_is_told_once_by_all_ranks_of_torchrun(config, run_command):
    slip = "optim_wrapper.optimizer.lrr=1"
    done = run_command("train", config, "--cfg-options", slip, ranks=2)
    assert done.returncode == 1
    assert done.stderr.count("unknown argument of SGD") == 1


def test_a_training_outlives_what_reads_its_output(config, tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "mm_runner", "train", config]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert "Training Classifier" in process.stdout.readline()  # as of "| head -1"
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(60) == 0, errors
    assert errors == ""
    assert (tmp_path / "work_dirs" / "toy_run" / "epoch_2.pth").exists()


def test_a_test_is_not_run_for_a_file_that_cannot_be_written(config, tmp_path, capsys):
    model = tmp_path / "model.pth"
    torch.save({"state_dict": Classifier().state_dict()}, model)
    (tmp_path / "file").write_text("")
    for out in (tmp_path, tmp_path / "file" / "metrics.json"):
        assert main(["test", config, str(model), "--out", str(out)]) == 1
        told = capsys.readouterr()
        assert told.err.startswith(f"mm-runner: --out: {out} was given, and ")
        assert told.out == ""
    out = tmp_path / "new" / "metrics.json"
    assert main(["test", config, str(model), "--out", str(out)]) == 0
    assert json.loads(out.read_text()).keys() == {"accuracy"}


def test_verify_resume_tells_exact_from_other_runs(config, tmp_path, capsys):
    assert main(["verify-resume", config, "--at-step", "2"]) == 0
    assert "Resuming is exact: stopped after step 2" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [config]
    (tmp_path / "forgetful.py").write_text(
        "from toy import Classifier\nclass Forgetful(Classifier):\n    calls = 0\n"
        "    def parse_losses(self, losses):\n        self.calls += 1\n"
        "        return super().parse_losses({'loss': losses['loss'] * self.calls})\n"
    )
    options = ["--cfg-options", "model.type=forgetful:Forgetful"]
    assert main(["verify-resume", config, *options]) == 1
    del sys.modules["forgetful"]


def test_convert_writes_what_training_goes_on_from(config, tmp_path, capsys):
    del config
    old, new = tmp_path / "old.pth", tmp_path / "new.pth"
    torch.save({"meta": {"epoch": 3, "iter": 9}, "state_dict": {"a": torch.ones(2)}}, old)
    assert main(["convert", str(old), str(new)]) == 0
    assert f"{new}: epoch 3, step 9; has" in capsys.readouterr().out
    assert load_checkpoint_file(new)["meta"]["epoch"] == 3
    assert main(["convert", str(tmp_path / "none.pth"), str(new)]) == 1
    assert "none.pth was asked for; there is no such file" in capsys.readouterr().err


def test_a_second_run_is_refused_unless_it_resumes_or_overwrites(config, capsys):
    assert main(["train", config]) == 0
    epochs = ["--cfg-options", "train_cfg.max_epochs=3"]
    assert main(["train", config, *epochs]) == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith("mm-runner: work_dir='")
    assert all(way in refusal for way in ("--resume", "--work-dir", "--overwrite"))
    with pytest.raises(SystemExit, match="2"):
        main(["train", config, "--resume", "--overwrite"])
    assert main(["train", config, "--overwrite", *epochs]) == 0
    assert Path("work_dirs/toy_run/epoch_3.pth").exists()
    assert main(["train", config, "--resume", "--cfg-options", "train_cfg.max_epochs=4"]) == 0
    assert "Resumed after epoch 3" in capsys.readouterr().out


def test_a_preempted_training_ends_with_status_75(config, monkeypatch):
    def preempt(self, data, optim_wrapper):
        signal.raise_signal(signal.SIGTERM)
        return BaseModel.train_step(self, data, optim_wrapper)

    monkeypatch.setattr(Classifier, "train_step", preempt)
    with pytest.raises(SystemExit) as stopped:
        main(["train", config])
    assert stopped.value.code == 75
    monkeypatch.undo()


def test_the_console_script_is_the_command():
    (script,) = entry_points(group="console_scripts", name="mm-runner")
    assert script.load() is main


def test_help_of_every_command_is_there(capsys):
    names = entry_points(group="mm.commands").names
    assert {"train", "test", "check", "plot", "verify-resume", "convert", "replay"} <= names
    for name in names:
        with pytest.raises(SystemExit, match="0"):
            main([name, "--help"])
        assert "75 preempted" in capsys.readouterr().out


def test_the_list_of_commands_imports_no_torch(run_script):
    script = "import sys\nfrom mm_runner.cli import main\ntry:\n    main(['--help'])\n"
    script += "finally:\n    print([n for n in sys.modules if n in ('torch', 'mm_dist', 'yaml')])\n"
    done = run_script(script)
    assert "find-batch-size" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_command_of_another_distribution_is_found(tmp_path, monkeypatch, capsys):
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    text = "[mm.commands]\ncount = others_cli:count\nbroken = not_there:Broken\n"
    (info / "entry_points.txt").write_text(text)
    (tmp_path / "others_cli.py").write_text(
        "def count(parser):\n    '''Count to N.'''\n"
        "    parser.add_argument('n', type=int)\n"
        "    return lambda options: print(*range(options.n)) or 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["count", "4"]) == 3
    assert capsys.readouterr().out == "0 1 2 3\n"
