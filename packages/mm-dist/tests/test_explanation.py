"""What ``mm-dist env`` shows."""

import observed
import pytest
from test_selection import CLOUD, PLUGIN

from mm_dist import _device_choice as device_choice
from mm_dist import _device_sharing as device_sharing
from mm_dist import _explanation as explanation
from mm_dist._explanation import explain_environment

BROKEN = """
class Broken:
    name = "broken"

    def detect(self, env):
        return 1 / 0

    read = detect
"""


def explain(env, **arguments):
    """Map each field to its value and source; several warnings or errors come last wins."""
    rows = explain_environment(env, device_type="cpu", **arguments)
    return {row.field: (row.value, row.source) for row in rows}


def test_each_value_comes_with_its_variable_and_the_others_with_a_reason():
    rows = explain(observed.SLURM_UNEVEN)
    started = "srun started this process: SLURM_PROCID=4 of a step"
    assert rows["launcher"] == ("slurm", started)
    assert rows["launcher pytorch"] == ("no", "RANK and WORLD_SIZE are not set")
    assert rows["launcher mpi"] == ("no", "no variable with an MPI rank is set")
    assert rows["rank"] == ("4", "SLURM_PROCID=4")
    assert rows["local_world_size"] == ("1", "SLURM_STEP_TASKS_PER_NODE=2(x2),1")
    assert rows["master_addr"] == ("n1", "first of SLURM_STEP_NODELIST")
    assert rows["master_port"] == ("20576", "computed from SLURM_JOB_ID and SLURM_STEP_ID")
    assert rows["device_type"] == ("cpu", "asked for")
    assert rows["backend"] == ("gloo", "that of cpu")
    assert rows["device"] == ("cpu", "the CPU is one device")
    assert "error" not in rows
    assert "warning" not in rows


@pytest.mark.parametrize(
    ("env", "field", "row"),
    [
        ({}, "launcher", ("none", "nothing else started this process")),
        ({}, "master_port", ("not needed", "one process")),
        (observed.TORCHRUN, "launcher", ("pytorch", "torchrun set RANK=1 and WORLD_SIZE=2")),
        (observed.OPEN_MPI_4, "launcher", ("mpi", "OMPI_COMM_WORLD_RANK=1")),
        (observed.OPEN_MPI_4, "node_rank", ("unknown", "no variable says so")),
        (
            observed.SLURM_PMIX,
            "launcher mpi",
            ("would come after slurm", "PMIX_RANK=1"),
        ),
        (
            observed.OPEN_MPI_IN_SLURM,
            "launcher slurm",
            ("no", "mpirun started this process inside a step of srun"),
        ),
        (
            observed.SLURM_BATCH,
            "launcher slurm",
            ("no", "SLURM_JOB_ID=9, but srun did not start this process"),
        ),
        (
            {**observed.SLURM, "RANK": "1", "WORLD_SIZE": "2"},
            "launcher pytorch",
            ("no", "RANK=1 and WORLD_SIZE=2 only repeat its task"),
        ),
        (
            observed.PYTORCH_JOB,
            "launcher",
            ("pytorch", "RANK=1 and WORLD_SIZE=2 are set"),
        ),
        (
            observed.TRAIN_JOB,
            "launcher",
            ("pytorch", "RANK and WORLD_SIZE are not set; PET_NNODES=2, PET_NODE_RANK=1"),
        ),
    ],
)
def test_the_launcher_is_explained(env, field, row):
    assert explain(env)[field] == row


def test_a_broken_environment_is_explained_as_far_as_it_goes():
    rows = explain({**observed.SLURM, "SLURM_PROCID": "one"})
    assert rows["launcher"][0] == "slurm"
    message, kind = rows["error"]
    assert message.startswith("Launcher 'slurm' reads rank from SLURM_PROCID, whose value is 'one'")
    assert kind == "LaunchError"
    assert rows["backend"] == ("gloo", "that of cpu")
    assert "rank" not in rows


def test_contradicting_variables_are_shown_together_with_the_error():
    rows = explain({**observed.SLURM, "RANK": "0", "WORLD_SIZE": "1"})
    assert rows["launcher"] == ("pytorch", "RANK=0 and WORLD_SIZE=1 are set")
    assert rows["launcher slurm"][0] == "would come after pytorch"
    assert rows["error"][0].startswith("launcher='auto' found two answers")


def test_what_is_asked_for_is_explained_or_refused():
    assert explain(observed.SLURM, launcher="none")["launcher"] == ("none", "asked for")
    assert "launcher='slrum' is not known" in explain({}, launcher="slrum")["error"][0]
    rows = explain_environment({}, device_type="tpu")
    assert rows[-1].field == "error"
    assert "device_type='tpu' is not known" in rows[-1].value


def test_an_error_of_a_plugin_is_a_row(install_plugin):
    install_plugin("broken", "[mm.launchers]\nbroken = broken:Broken\n", BROKEN)
    with pytest.warns(UserWarning, match="'broken' is not asked: .*ZeroDivisionError"):
        assert explain({})["launcher"][0] == "none"
    rows = explain({}, launcher="broken")
    assert rows["error"] == ("ZeroDivisionError: division by zero", "a plugin")
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
    for module in (explanation, device_choice, device_sharing):
        monkeypatch.setattr(module, "count_devices", lambda row: int(row.name == "cuda"))
    rows = {row.field: row for row in explain_environment(observed.TORCHRUN)}
    assert rows["device_type"][1:] == ("cuda", "available here")
    assert rows["devices"][1:] == ("1 visible", "CUDA_VISIBLE_DEVICES=not set, LOCAL_RANK=1")
    assert rows["backend"][1:] == ("nccl", "that of cuda")
    assert rows["device"][1:] == ("cuda:0", "local rank 1")
    assert "share one cuda device" in rows["warning"].value


def test_windows_is_told_that_libuv_is_off(monkeypatch):
    monkeypatch.setattr(explanation.sys, "platform", "win32")
    row = explain_environment({}, device_type="cpu")[-1]
    assert row == ("USE_LIBUV", "0", "torch has no libuv on Windows")
