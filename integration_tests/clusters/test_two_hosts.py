"""Two machines with their own addresses, without a scheduler."""

import shutil
import signal

import pytest
from hosts import under_names
from launching import finish, run_on, started
from places import RANKS, expected_places, read_places
from training import (
    CONFIG,
    FEW_EPOCHS,
    HERE,
    OPTIONS,
    SCRIPT,
    SLOW,
    accuracy,
    assert_equal_runs,
    hurry,
    read_checkpoint,
    wait_until_it_trains,
)

# Word for word as in the documents, where the second has "ip_of_the_first_machine".
DOCUMENTED = """python -m torch.distributed.launch \\
    --nnodes 2 \\
    --node_rank {node_rank} \\
    --master_addr {master_addr} \\
    --master_port 29500 \\
    --nproc_per_node=8 \\
    examples/distributed_training.py --launcher pytorch
"""
TORCHRUN = ("python", "-m", "torch.distributed.run")
MM_DIST = ("mm-dist", "run")


def test_documented_commands_train_with_eight_processes_on_each(nodes, tmp_path):
    shutil.copytree(HERE / "examples", tmp_path / "examples")
    first = DOCUMENTED.format(node_rank=0, master_addr="127.0.0.1")
    second = DOCUMENTED.format(node_rank=1, master_addr='"10.77.0.11"')
    outputs = run_on(nodes, ("bash", "-c", first), ("bash", "-c", second), cwd=tmp_path)
    assert accuracy(outputs[0]) > 90
    assert "test accuracy" not in outputs[1]
    checkpoint = read_checkpoint(tmp_path / "work_dirs" / "distributed_training")
    assert checkpoint["meta"]["world_size"] == 16
    assert checkpoint["meta"]["epoch"] == 20


@pytest.mark.cut
def test_torchrun_with_c10d_trains_as_one_machine_does(nodes, reference, tmp_path):
    meeting = ("--rdzv_backend=c10d", "--rdzv_endpoint=n1:29400")
    command = (*TORCHRUN, "--nnodes=2", "--nproc_per_node=1", *meeting, SCRIPT, *OPTIONS)
    run_on(nodes, *[(*command, "--work-dir", tmp_path)] * 2)
    assert_equal_runs(tmp_path, reference)


@pytest.mark.parametrize(
    "options",
    [
        ("--master-addr=10.77.0.11",),
        ("--rdzv-backend=c10d", "--rdzv-endpoint=10.77.0.11:29400"),
    ],
    ids=["static", "c10d"],
)
def test_names_that_mean_the_loopback_device_do_not_matter(nodes, options, tmp_path):
    commands = []
    for node in nodes:
        # As Debian's installer writes it.
        names = tmp_path / f"names_of_{node.name}"
        names.write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
        launch = (*MM_DIST, "--nnodes=2", "--nproc-per-node=2", *options)
        ranks = (RANKS, tmp_path / "places", "pytorch")
        commands.append((*under_names(names), *launch, *ranks))
    run_on(nodes, *commands)
    hosts = [node.name for node in nodes]
    found = read_places(tmp_path / "places")
    # Which of them is the first is settled by their meeting.
    assert found in (expected_places("pytorch", *hosts), expected_places("pytorch", *hosts[::-1]))


def elastic(launcher, work_dir):
    """A run that begins with one machine, and takes in a second one."""
    nodes = ("--nnodes=1:2", "--nproc_per_node=1", "--max_restarts=3")
    meeting = ("--rdzv_backend=c10d", "--rdzv_endpoint=n1:29400")
    patience = ("--rdzv_conf=last_call_timeout=1,join_timeout=60",)
    train = ("-m", "mm_runner", "train", CONFIG, "--resume", "--work-dir", work_dir)
    return (*launcher, *nodes, *meeting, *patience, *train, *FEW_EPOCHS, SLOW)


def test_elastic_run_takes_a_machine_in_and_goes_on_without_it(nodes, tmp_path):
    command = elastic(MM_DIST, tmp_path)
    with started((nodes[0], command)) as (first,):
        wait_until_it_trains(tmp_path, 1, lambda: first.poll() is None)
        with started((nodes[1], command)) as (second,):
            wait_until_it_trains(tmp_path, 2, lambda: first.poll() is None)
            (tmp_path / "trains_0_of_1").unlink()
            nodes[1].send(second, signal.SIGTERM)
            finish((second,))
        finish_alone(first, tmp_path)


def test_elastic_torchrun_goes_on_without_a_machine(nodes, tmp_path):
    command = elastic(TORCHRUN, tmp_path)
    with started(*((node, command) for node in nodes)) as (first, second):
        wait_until_it_trains(tmp_path, 2, lambda: first.poll() is None)
        nodes[1].send(second, signal.SIGTERM)
        finish((second,))
        finish_alone(first, tmp_path)


def finish_alone(process, work_dir):
    """See a run through that one machine is left with."""
    wait_until_it_trains(work_dir, 1, lambda: process.poll() is None)
    hurry(work_dir)
    (output,) = finish((process,))
    assert process.returncode == 0, output
    meta = read_checkpoint(work_dir)["meta"]
    assert (meta["epoch"], meta["world_size"]) == (2, 1)
