import json

import pytest
import torch
from test_selection import CLOUD, PLUGIN

from mm_dist._command import main
from mm_dist._command._versions import read_versions

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
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["env", "--launcher=torch"])
    error = capsys.readouterr().err.replace("'", "")
    assert "torch" in error
    assert error.endswith("(choose from auto, none, pytorch, slurm, mpi, cloud)\n")
    assert main(["env", "--launcher=cloud"]) == 1
    assert "cannot be used: KeyError: 'CLOUD_RANK'" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["env", "simulate", "check"])
def test_a_file_that_cannot_be_written_is_said_before_anything_is_measured(
    command, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    options = ["--world-size=8"] if command == "simulate" else []
    for target, reason in [("missing/x.json", "there is no folder missing"), (".", "it is a fold")]:
        assert main([command, *options, "--json", target]) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"mm-dist: --json={target} cannot be written: {reason}")
        assert captured.out == ""


def test_versions_include_what_the_data_and_the_devices_need(install_plugin, tmp_path):
    source = """
MY_CHIP = {
    "name": "mychip",
    "process_group_backend": "mychipccl",
    "device_module": "mychip",
    "extension": "torch_mychip",
}
"""
    install_plugin("mychip", "[mm.devices]\nmychip = mychip:MY_CHIP\n", source)
    for folder, name, version in [
        ("torch_mychip", "torch-mychip", "2.1"),
        ("torch_npu", "torch_npu", "2.6.0.post3"),
        ("numpy", "numpy", "9.9"),
        ("torchvision", "torchvision", "0.28"),
        ("other", "other", "1.0"),
    ]:
        info = tmp_path / f"{folder}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    versions = read_versions()
    assert versions["torch-mychip"] == "2.1"
    assert versions["torch_npu"] == "2.6.0.post3"
    assert versions["torchvision"] == "0.28"
    assert versions["numpy"] == "9.9", "the first on the path"
    assert "other" not in versions


def test_env_ends_silently_when_nobody_reads_it(start_command):
    command = start_command("env")
    # As head does.
    command.stdout.close()
    assert command.stderr.read() == ""
    assert command.wait(60) == 141
