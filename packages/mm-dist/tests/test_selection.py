"""Which launcher ``auto`` takes, by name, by plugin, and inside of another one."""

import sys

import observed
import pytest
from test_launchers import HYDRA, OPEN_MPI, SLURM_TWO_NODES, TORCHRUN

from mm_dist import ConfigError, LaunchError, PyTorchLauncher
from mm_dist._launchers._selection import detect_launcher, launcher_names, select_launcher

PLUGIN = """
from mm_dist import LaunchEnvironment


class CloudLauncher:
    name = "cloud"

    def detect(self, env):
        return "CLOUD_RANK" in env

    def read(self, env):
        rank = int(env["CLOUD_RANK"])
        return LaunchEnvironment("cloud", rank, 0, 2, 1, 2, "head", 1234, {"rank": "CLOUD_RANK"})
"""
CLOUD = "[mm.launchers]\ncloud = cloud_plugin:CloudLauncher\n"


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({}, "none"),
        (TORCHRUN, "pytorch"),
        (SLURM_TWO_NODES, "slurm"),
        ({**SLURM_TWO_NODES, **TORCHRUN}, "pytorch"),
        ({**SLURM_TWO_NODES, "SLURM_STEP_ID": ""}, "none"),
        (OPEN_MPI, "mpi"),
        (HYDRA, "mpi"),
        ({**SLURM_TWO_NODES, **OPEN_MPI}, "mpi"),
    ],
    ids=[
        "nothing",
        "torchrun",
        "slurm",
        "torchrun-in-slurm",
        "salloc-shell",
        "open-mpi",
        "hydra",
        "mpirun-in-slurm",
    ],
)
def test_auto_takes_the_launcher_that_started_the_process(env, name):
    assert select_launcher("auto", env).name == name


@pytest.mark.parametrize("name", ["none", "pytorch", "slurm", "mpi"])
def test_select_launcher_finds_our_own_by_metadata(name):
    assert select_launcher(name, {}).name == name


def test_installed_launcher_is_selected_and_detected(install_plugin):
    install_plugin("cloud-plugin", CLOUD, PLUGIN)
    assert launcher_names()[-1] == "cloud"
    assert "cloud_plugin" not in sys.modules
    assert detect_launcher(TORCHRUN).name == "pytorch"
    assert "cloud_plugin" not in sys.modules
    assert detect_launcher({"CLOUD_RANK": "1"}).name == "cloud"
    assert select_launcher("cloud", {}).read({"CLOUD_RANK": "1"}).rank == 1
    assert detect_launcher({}).name == "none"


def test_select_launcher_suggests_a_near_name():
    message = r"'slrum' is not known; there are: auto, none, .*, slurm, mpi\..*mean 'slurm'"
    with pytest.raises(ConfigError, match=message):
        select_launcher("slrum", {})


def test_select_launcher_refuses_two_launchers_of_one_name(install_plugin):
    install_plugin("cloud-plugin", CLOUD, PLUGIN)
    install_plugin("other-cloud", "[mm.launchers]\ncloud = other_cloud:Launcher\n", "")
    with pytest.raises(ConfigError, match=r"'cloud' of mm\.launchers is provided by .* and by "):
        select_launcher("cloud", {})


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("class CloudLauncher:\n    def __init__(self, url): ...", "TypeError: .*'url'"),
        ("", "AttributeError: .*CloudLauncher"),
    ],
    ids=["import", "arguments", "renamed"],
)
def test_a_launcher_plugin_that_cannot_be_loaded_is_skipped(install_plugin, source, cause):
    install_plugin("cloud-plugin", CLOUD, source)
    message = rf"cloud_plugin:CloudLauncher cannot be used here \({cause}.*uninstall"
    with pytest.warns(UserWarning, match=f"'cloud' is not asked: its plugin {message}") as caught:
        assert select_launcher("auto", {}).name == "none"
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(ConfigError, match=f"launcher='cloud' cannot be used: its plugin {message}"):
        select_launcher("cloud", {})
    assert select_launcher("auto", TORCHRUN).name == "pytorch", "and is not even asked"


@pytest.mark.parametrize("error", ["KeyError('CLOUD_URL')", "mm_dist.LaunchError('half a job')"])
def test_a_launcher_plugin_that_fails_to_look_is_skipped_but_may_refuse(install_plugin, error):
    look = f"    name = 'cloud'\n    def detect(self, env):\n        raise {error}\n"
    install_plugin("cloud-plugin", CLOUD, f"import mm_dist\nclass CloudLauncher:\n{look}")
    if "LaunchError" in error:
        with pytest.raises(LaunchError, match="half a job"):
            select_launcher("auto", {})
        return
    with pytest.warns(
        UserWarning, match=r"'cloud' is not asked: .*KeyError: 'CLOUD_URL'"
    ) as caught:
        assert select_launcher("auto", {}).name == "none"
    assert [warning.filename for warning in caught] == [__file__]


COPY = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
POD_OF_EIGHT = {**observed.TRAIN_JOB, "PET_NPROC_PER_NODE": "8"}


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({**observed.SLURM, **observed.TORCHRUN}, "pytorch"),
        ({**observed.SLURM, "RANK": "0", "WORLD_SIZE": "8"}, "pytorch"),
        ({**observed.SLURM, **COPY}, "slurm"),
        ({**observed.OPEN_MPI_5, **COPY}, "mpi"),
        ({**observed.SLURM, "RANK": "9"}, "slurm"),
        ({**observed.SLURM, **observed.TRAIN_JOB}, "slurm"),
    ],
    ids=[
        "torchrun-inside-a-task",
        "other-launcher-inside-a-task",
        "copy-of-srun",
        "copy-of-mpirun",
        "half-of-it",
        "pod-with-slurm-inside",
    ],
)
def test_auto_prefers_what_started_the_process(env, launcher):
    assert select_launcher("auto", env).name == launcher


@pytest.mark.parametrize(
    ("task", "left_over", "message"),
    [
        (
            observed.SLURM,
            {"RANK": "0", "WORLD_SIZE": "1"},
            r"RANK=0 and WORLD_SIZE=1, but 'slurm' says rank 1 of 2\. Unset .*launcher='slurm'",
        ),
        (observed.SLURM, {"RANK": "0", "WORLD_SIZE": "2"}, r"'slurm' says rank 1 of 2"),
        (
            observed.MPICH,
            {"RANK": "0", "WORLD_SIZE": "1"},
            r"'mpi' says rank 1 of 2.*launcher='mpi'",
        ),
    ],
    ids=["each-alone", "same-rank-twice", "mpi"],
)
def test_auto_refuses_left_over_numbers_that_contradict_the_task(task, left_over, message):
    env = {**task, **left_over}
    with pytest.raises(LaunchError, match=message):
        select_launcher("auto", env)
    # Who names a launcher has decided.
    assert select_launcher("pytorch", env).name == "pytorch"
    assert detect_launcher(env).name == "pytorch"


def test_torchrun_inside_a_pod_has_the_word():
    env = {**POD_OF_EIGHT, **observed.TORCHRUN}
    read = select_launcher("auto", env).read(env)
    assert (read.rank, read.local_rank, read.world_size) == (1, 1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"PET_NPROC_PER_NODE": "4"}, r"not set: LOCAL_RANK\."),
        ({"KUBERNETES_SERVICE_HOST": ""}, r"not set: LOCAL_RANK\."),
        ({"MASTER_ADDR": ""}, r"not set: LOCAL_RANK, MASTER_ADDR\."),
    ],
    ids=["several-per-pod", "no-pod", "more-is-missing"],
)
def test_a_missing_local_rank_is_zero_only_where_a_pod_runs_one_process(changes, message):
    with pytest.raises(LaunchError, match=message):
        PyTorchLauncher().read({**observed.PYTORCH_JOB, **changes})
