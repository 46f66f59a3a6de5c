import json

import pytest
import torch
from test_selection import CLOUD, PLUGIN

from mm_dist._command import main

OWN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def test_env_shows_what_is_chosen_and_from_which_variable(capsys, monkeypatch):
    for name, value in zip(OWN, ("1", "2", "1", "node0", "2345"), strict=True):
        monkeypatch.setenv(name, value)
    assert main(["env"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["what", "value", "from"]
    assert ["rank", "1", "RANK=1"] in lines
    assert ["master_addr", "node0", "MASTER_ADDR=node0"] in lines
    assert ["torch", str(torch.__version__)] in lines


def test_env_as_json(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["env", "--launcher=none", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["chosen"]["launcher"]["value"] == "none"
    assert printed["versions"]["torch"] == str(torch.__version__)
    assert main(["env", "--launcher=none", "--json", "env.json"]) == 0
    assert json.loads((tmp_path / "env.json").read_text()) == printed
    assert "launcher" in capsys.readouterr().out


def test_env_says_why_an_environment_cannot_be_used(capsys, monkeypatch):
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    assert main(["env", "--launcher=pytorch"]) == 1
    assert "cannot be used: launcher='pytorch' needs" in capsys.readouterr().out


def test_env_takes_the_launchers_that_there_are(capsys, install_plugin):
    install_plugin("cloud-plugin", CLOUD, PLUGIN)
    with pytest.raises(SystemExit, match="^2$"):
        main(["env", "--launcher=torch"])
    error = capsys.readouterr().err.replace("'", "")
    assert "torch" in error
    assert error.endswith("(choose from auto, none, pytorch, slurm, mpi, cloud)\n")
    assert main(["env", "--launcher=cloud"]) == 1
    assert "cannot be used: KeyError: 'CLOUD_RANK'" in capsys.readouterr().out


def test_env_ends_silently_when_nobody_reads_it(start_command):
    command = start_command("env")
    # As head does.
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait(60) == 141
