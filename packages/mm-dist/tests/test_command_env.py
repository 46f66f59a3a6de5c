"""What ``mm-dist env`` shows."""

import observed
import pytest
import torch
from test_selection import CLOUD, PLUGIN

from mm_dist import _devices as device_choice
from mm_dist._command import _env, main
from mm_dist._command._env import explain_environment, read_versions

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
    assert "cannot be used: 'CLOUD_RANK'" in capsys.readouterr().out


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


BROKEN = """
class Broken:
    name = "broken"

    def detect(self, env):
        return 1 / 0

    read = detect
"""


def explain(env, **arguments):
    """Map each field to its value and source; several warnings or errors come last wins."""
    rows = explain_environment(env, **arguments)
    return {row.field: (row.value, row.source) for row in rows}


def test_each_value_comes_with_its_variable_and_the_others_with_a_reason():
    rows = explain(observed.SLURM_UNEVEN)
    assert rows["launcher"][0] == "slurm"
    assert rows["launcher"][1].endswith("SLURM_PROCID=4")
    assert rows["launcher pytorch"] == ("no", "none of its variables is set")
    assert rows["rank"] == ("4", "SLURM_PROCID=4")
    assert rows["local_world_size"] == ("1", "SLURM_STEP_TASKS_PER_NODE=2(x2),1")
    assert rows["master_addr"] == ("n1", "first of SLURM_STEP_NODELIST")
    assert rows["master_port"] == ("20576", "computed from SLURM_JOB_ID and SLURM_STEP_ID")
    assert rows["device_type"] == ("cpu", "no accelerator is available")
    assert rows["backend"] == ("gloo", "default for cpu")
    assert rows["device"] == ("cpu", "local rank 0")
    assert "error" not in rows
    assert "warning" not in rows


@pytest.mark.parametrize(
    ("env", "field", "row"),
    [
        ({}, "launcher", ("none", "nothing else started this process")),
        ({}, "master_port", ("not needed", "one process")),
        (observed.MPICH, "launcher", ("mpi", "PMI_RANK=1")),
        (observed.OPEN_MPI_4, "node_rank", ("unknown", "no variable says so")),
        (observed.SLURM_IDLE_GPU, "launcher mpi", ("no", "none of its variables is set")),
    ],
)
def test_the_launcher_is_explained(env, field, row):
    value, source = explain(env)[field]
    assert value == row[0]
    assert source.startswith(row[1])


def test_a_broken_environment_is_explained_as_far_as_it_goes():
    rows = explain({**observed.SLURM, "SLURM_PROCID": "one"})
    assert rows["launcher"][0] == "slurm"
    message, kind = rows["error"]
    assert message.startswith("Launcher 'slurm' reads rank from SLURM_PROCID, whose value is 'one'")
    assert kind == "LaunchError"
    assert rows["backend"] == ("gloo", "default for cpu")
    assert "rank" not in rows


def test_contradicting_variables_are_shown_together_with_the_error():
    rows = explain({**observed.SLURM, "RANK": "0", "WORLD_SIZE": "1"})
    assert rows["launcher"] == ("pytorch", "RANK=0, WORLD_SIZE=1")
    assert rows["launcher slurm"][0] == "would come after pytorch"
    assert rows["error"][0].startswith("launcher='auto' found two answers")


def test_what_is_asked_for_is_explained_or_refused():
    assert explain(observed.SLURM, launcher="none")["launcher"] == ("none", "asked for")
    assert "launcher='slrum' is not known" in explain({}, launcher="slrum")["error"][0]


def test_an_error_of_a_plugin_is_a_row(install_plugin):
    install_plugin("broken", "[mm.launchers]\nbroken = broken:Broken\n", BROKEN)
    with pytest.warns(UserWarning, match="'broken' is not asked: .*ZeroDivisionError"):
        assert explain({})["launcher"][0] == "none"
    rows = explain({}, launcher="broken")
    assert rows["error"] == ("division by zero", "ZeroDivisionError")
    assert rows["backend"][0] == "gloo"


def test_numbers_that_a_plugin_does_not_explain_are_said_to_be_its_own(install_plugin):
    install_plugin("cloud-plugin", CLOUD, PLUGIN)
    rows = explain({"CLOUD_RANK": "1"})
    assert rows["rank"] == ("1", "CLOUD_RANK=1")
    assert rows["world_size"] == ("2", "launcher 'cloud' says so")


def test_misuse_is_a_warning():
    assert "was granted 3 tasks" in explain(observed.SLURM_SHELL)["warning"][0]


def test_devices_are_explained_by_their_variables(monkeypatch):
    # A stand-in for a machine with one CUDA device.
    for module in (_env, device_choice):
        monkeypatch.setattr(module, "count_devices", lambda row: int(row.name == "cuda"))
    rows = {row.field: row for row in explain_environment(observed.TORCHRUN)}
    assert rows["device_type"][1:] == ("cuda", "available here")
    assert rows["devices"][1:] == ("1 visible", "CUDA_VISIBLE_DEVICES=not set, LOCAL_RANK=1")
    assert rows["backend"][1:] == ("nccl", "default for cuda")
    assert rows["device"][1:] == ("cuda:0", "local rank 1")
