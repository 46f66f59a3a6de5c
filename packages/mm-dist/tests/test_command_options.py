"""What ``mm-dist run`` makes of its options; nothing is started."""

import socket
from importlib.metadata import entry_points, version

import pytest
import torch

from mm_dist import ConfigError
from mm_dist._command import _run, main
from mm_dist._command._run import read_run_options
from mm_dist._rendezvous._address import can_host


@pytest.fixture(autouse=True)
def folder_of_a_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").touch()


# What the command sets for its ranks, unless it is set.
VARIABLES_OF_RUN = (
    "OMP_NUM_THREADS",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
)


def plan(*arguments):
    return read_run_options([*arguments, "script.py", "--its-own"])


@pytest.fixture
def taken_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("given", [[], ["--standalone"], ["--rdzv-backend=c10d"]])
def test_one_machine_meets_at_a_free_port(given):
    options, other = plan(*given), plan(*given)
    assert (options.rdzv_backend, options.rdzv_endpoint) == ("c10d", "localhost:0")
    assert options.rdzv_id != other.rdzv_id
    assert not options.standalone
    assert options.training_script_args == ["script", "script.py", "--its-own"]


def test_a_given_port_wins():
    options = plan("--master-port=2345")
    assert (options.rdzv_backend, options.master_addr) == ("static", "127.0.0.1")
    assert options.master_port == 2345
    assert plan("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:1").rdzv_endpoint == "localhost:1"


def test_kubernetes_variables_are_defaults(monkeypatch):
    for name, value in {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": "2345",
        "PET_MAX_RESTARTS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    options = plan("--master_port=2346")
    assert (options.nnodes, int(options.node_rank), options.master_port) == ("2", 1, 2346)


def test_first_of_two_machines_is_found_out(taken_port):
    # On one machine the first launcher is the one that finds the port free.
    two = ("--nnodes=2", "--master-addr=127.0.0.1")
    assert plan(*two).node_rank == 0
    assert plan(*two, f"--master-port={taken_port}").node_rank == 1
    with pytest.raises(ConfigError, match="needs --node-rank on all machines but the first"):
        plan("--nnodes=3", "--master-addr=127.0.0.1", f"--master-port={taken_port}")


@pytest.mark.parametrize(
    ("given", "is_host"),
    [
        (["--node-rank=0"], 1),
        (["--node-rank=1"], 0),
        (["--rdzv-conf=is_host=0,join_timeout=9", "--node-rank=0"], 0),
        ([], 1),
    ],
)
def test_c10d_over_machines_is_told_its_host_and_address(given, is_host):
    options = plan("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29400", *given)
    assert f"is_host={is_host}" in options.rdzv_conf
    assert options.local_addr == "127.0.0.1"
    assert options.node_rank == 0, "torch would warn that c10d does not use it"


def test_hosting_follows_from_the_address(taken_port):
    assert can_host("127.0.0.1", 0)
    assert not can_host("127.0.0.1", taken_port)
    assert not can_host("192.0.2.1", 0), "an address of no machine at all"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nnodes=two"], "--nnodes=two is neither a number nor MIN:MAX"),
        (["--nnodes=2"], "--nnodes=2 needs --master-addr"),
        (["--nnodes=1:2", "--master-addr=a"], "need --rdzv-backend=c10d"),
        (["--nnodes=2", "--rdzv-backend=c10d"], "needs --rdzv-endpoint=HOST:PORT"),
        (["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=a:b"], "-endpoint=HOST:PORT"),
        (["--nproc-per-node=some"], "torch's launcher refuses the options"),
    ],
)
def test_bad_usage_is_explained(arguments, message, capsys, monkeypatch):
    for name in VARIABLES_OF_RUN:
        monkeypatch.setenv(name, "1")
    assert main(["run", *arguments, "script.py"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run"], 2, "required: training_script"),
        (["run", "--max_restarts=x", "s.py"], 2, "invalid int value: 'x'"),
        (["walk"], 2, "invalid choice: 'walk'"),
        ([], 2, "required: COMMAND"),
        (["--version"], 0, f"mm-dist {version('mm-dist')}"),
        (["run", "--help"], 0, "usage: mm-dist run"),
    ],
)
def test_argparse_answers(arguments, status, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == status
    captured = capsys.readouterr()
    assert message in captured.out + captured.err


def test_occupied_port_is_named(taken_port, capsys, monkeypatch):
    for name in VARIABLES_OF_RUN:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM")
    assert main(["run", f"--master-port={taken_port}", "script.py"]) == 1
    said = f"could not meet at 127.0.0.1:{taken_port} (static): "
    assert said in capsys.readouterr().err


def test_processes_default_to_the_accelerators(monkeypatch):
    if not torch.cuda.is_available():
        assert plan().nproc_per_node == "1"
    # Here a table of one device type stands in for an accelerator.
    monkeypatch.setattr(_run, "available_device_type", lambda: "npu")
    monkeypatch.setattr(_run, "count_devices", lambda row: 8 if row.name == "npu" else 0)
    assert plan().nproc_per_node == "8"


def test_command_is_installed():
    (entry,) = entry_points(group="console_scripts", name="mm-dist")
    assert entry.load() is main
