"""One script, unchanged, trains to the same weights on every engine; jobs are submitted for real.

Slurm and MPI: see ``clusters``.
"""

import importlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
SCRIPT = HERE / "one_script.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
MM_DIST = (sys.executable, "-m", "mm_dist")
PATIENCE_S = 600
# Of whatever may have started the tests.
JOB_VARIABLES = ("SLURM_", "SUBMITIT_", "OMPI_", "PMI", "PET_", "RAY_", "ACCELERATE_")


@pytest.fixture
def start(tmp_path):
    """``start(*command, **variables)`` starts a command as a user does; none outlives the test."""
    started = []
    outside = {k: v for k, v in os.environ.items() if not k.startswith(JOB_VARIABLES)}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(*command, **variables):
        own = {"PATH": programs, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        own |= {"RAY_AUTH_MODE": "disabled", **variables}
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=tmp_path,
            env={**outside, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def run(start):
    """``run(*command, status=0, **variables)`` runs it to its end, and returns what it prints."""

    def finish(*command, status=0, **variables):
        return finish_all([start(*command, **variables)], status)[0]

    return finish


def finish_all(processes, status=0):
    with ThreadPoolExecutor() as readers:
        outputs = list(readers.map(lambda one: one.communicate(timeout=PATIENCE_S)[0], processes))
    assert [one.returncode for one in processes] == [status] * len(processes), "\n".join(outputs)
    return outputs


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """What torchrun's two ranks come to."""
    folder = tmp_path_factory.mktemp("torchrun")
    command = [*TORCHRUN, "--standalone", "--nproc-per-node=2", SCRIPT, folder]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return read_reports(folder)[0]["weights"]


def read_reports(work_dir):
    files = sorted(work_dir.glob("rank_*.json"))
    return [json.loads(file.read_text()) for file in files]


def assert_trained(work_dir, expected, launcher=None, *, resumed=False):
    reports = read_reports(work_dir)
    places = [(one["rank"], one["world_size"], one["local_rank"]) for one in reports]
    assert places == [(0, 2, 0), (1, 2, 1)]
    assert [one["weights"] for one in reports] == [expected] * 2
    assert {one["steps"] for one in reports} == {24}
    assert all((one["first_step"] > 0) == resumed for one in reports)
    if launcher is not None:
        assert {one["launcher"] for one in reports} == {launcher}


ACCELERATE = "-m accelerate.commands.launch --multi_gpu --num_processes=2 --num_machines=1"
ACCELERATE = (sys.executable, *ACCELERATE.split(), "--mixed_precision=no", "--dynamo_backend=no")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize(
    ("launcher", "command"),
    [
        pytest.param("pytorch", (*MM_DIST, "run", "--nproc-per-node=2"), id="mm-dist-run"),
        pytest.param("pytorch", ACCELERATE, id="accelerate-launch"),
    ],
)
def test_launchers(run, tmp_path, expected, launcher, command):
    port = (f"--main_process_port={free_port()}",) if command is ACCELERATE else ()
    run(*command, *port, SCRIPT, tmp_path / "out")
    assert_trained(tmp_path / "out", expected, launcher)


@pytest.mark.parametrize(
    ("how", "launcher"),
    [
        ("spawn_with_variables", "pytorch"),
        ("fork_with_variables", "pytorch"),
        ("spawn_with_group", "none"),
        ("submitit_local", "pytorch"),
    ],
)
def test_processes_started_from_python(run, tmp_path, expected, how, launcher):
    port = {"MASTER_PORT": str(free_port())} if "variables" in how else {}
    run(sys.executable, HERE / "starters.py", how, tmp_path / "out", **port)
    assert_trained(tmp_path / "out", expected, launcher)


@pytest.mark.parametrize("kind", ["pytorchjob", "trainjob-torchrun", "trainjob-mm-dist"])
def test_pods_of_kubernetes(start, tmp_path, expected, kind):
    """The operators' variables, as they set them in two pods of one process each."""
    port, is_plain = str(free_port()), kind == "pytorchjob"
    command = {
        "pytorchjob": (sys.executable,),
        "trainjob-torchrun": TORCHRUN,
        "trainjob-mm-dist": (*MM_DIST, "run"),
    }[kind]
    pods = []
    for rank in range(2):
        own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        own |= {"NNODES": "2", "NODE_RANK": str(rank), "NPROC_PER_NODE": "1"}
        variables = {f"PET_{name}": value for name, value in own.items()}
        if is_plain:
            variables |= {"RANK": str(rank), "WORLD_SIZE": "2", **own}
        variables["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
        pods.append(start(*command, SCRIPT, tmp_path / "out", **variables))
    finish_all(pods)
    reports = read_reports(tmp_path / "out")
    assert [(one["rank"], one["world_size"], one["local_rank"]) for one in reports] == [
        (0, 2, 0),
        (1, 2, 0),
    ]
    assert [one["weights"] for one in reports] == [expected] * 2


def test_notebook(run, tmp_path, expected):
    run(sys.executable, HERE / "starters.py", "notebook", tmp_path / "two")
    assert_trained(tmp_path / "two", expected)
    run(sys.executable, SCRIPT, tmp_path / "script")
    assert read_reports(tmp_path / "two.alone") == read_reports(tmp_path / "script")


# Holds a cluster of Ray until its input ends.
RAY_CLUSTER = """
import sys, ray
port, folder = int(sys.argv[1]), sys.argv[2]
ray.init(num_cpus=4, include_dashboard=True, dashboard_port=port, _temp_dir=folder)
print("up", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def ray_cluster():
    """The address of a cluster of Ray on this machine."""
    pytest.importorskip("ray")
    outside = {k: v for k, v in os.environ.items() if not k.startswith(JOB_VARIABLES)}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": programs, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    own["RAY_USAGE_STATS_ENABLED"] = "0"
    # On a busy machine Ray gives its start up after 30 s.
    for _ in range(6):
        port = free_port()
        with (
            # Ray refuses a folder within an environment, which is where nox's temporary ones are.
            tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder,
            subprocess.Popen(
                [sys.executable, "-c", RAY_CLUSTER, str(port), folder],
                env={**outside, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as head,
        ):
            if "up\n" in iter(head.stdout.readline, ""):
                yield f"http://127.0.0.1:{port}"
                return
    pytest.fail("Ray does not start")


@pytest.fixture
def submit_to_ray(start, ray_cluster, tmp_path):
    """``submit_to_ray(*options)`` submits the script, and returns the job's name."""
    shutil.copy(SCRIPT, tmp_path / "train.py")
    job = {
        "processes_per_node": 2,
        "requeue": True,
        "env": {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": 300},  # of a busy machine
        "ray": {"address": ray_cluster, "storage_path": str(tmp_path / "ray")},
    }
    (tmp_path / "submit.yaml").write_text(yaml.safe_dump(job))

    def submit(*options):
        arguments = ("train.py", tmp_path / "out", "--resume", *options)
        end = time.monotonic() + PATIENCE_S
        while True:
            client = start(*MM_DIST, "submit", "--on", "ray", "--", *arguments)
            output, _ = client.communicate(timeout=PATIENCE_S)
            if client.returncode == 0:
                return re.search(r"raysubmit_\w+", output)[0]
            # The cluster is not up yet.
            assert "Failed to connect" in output or "try again later" in output, output
            assert time.monotonic() < end, output
            time.sleep(2)

    return submit


def wait_for_step(work_dir, step, logs):
    """Wait until both ranks have come to a step; return their processes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        files = [work_dir / f"step_of_{rank}.json" for rank in range(2)]
        reports = [json.loads(file.read_text()) for file in files if file.exists()]
        if len(reports) == 2 and min(one["step"] for one in reports) >= step:
            return [one["pid"] for one in reports]
        time.sleep(0.1)
    raise TimeoutError(f"step {step} did not come: {logs()}")


@pytest.fixture
def ray_job(run, ray_cluster):
    """``ray_job("status", job)`` asks Ray of a job; it must not have failed."""

    def ask(command, job):
        said = run("ray", "job", command, job, RAY_API_SERVER_ADDRESS=ray_cluster).lower()
        if command == "status":
            assert "failed" not in said, ask("logs", job)
        return said

    return ask


def wait_until_it_succeeds(ray_job, job):
    end = time.monotonic() + PATIENCE_S
    while "succeeded" not in ray_job("status", job):
        assert time.monotonic() < end, ray_job("logs", job)


def test_ray_resumes_when_a_worker_is_killed(submit_to_ray, ray_job, tmp_path, expected):
    job = submit_to_ray("--seconds-per-step=1")
    pids = wait_for_step(tmp_path / "out", 6, lambda: ray_job("logs", job))
    os.kill(pids[1], signal.SIGKILL)
    wait_until_it_succeeds(ray_job, job)
    assert_trained(tmp_path / "out", expected, "pytorch", resumed=True)


def test_ray_job_that_was_stopped_is_submitted_again(submit_to_ray, ray_job, tmp_path, expected):
    job = submit_to_ray("--seconds-per-step=1")
    wait_for_step(tmp_path / "out", 6, lambda: ray_job("logs", job))
    ray_job("stop", job)
    wait_until_it_succeeds(ray_job, submit_to_ray())
    assert_trained(tmp_path / "out", expected, "pytorch", resumed=True)


JOB = """
nodes: 2
cpus: 16
gpus: 8
memory: 64G
time: 24:00:00
image: registry.example.com/digits:1
requeue: true
env: {NCCL_DEBUG: INFO, EMPTY: " ", NUMBER: 1}
kubernetes: {namespace: vision, workdir: /workspace, claims: {work-dirs: /work_dirs}}
"""


def as_the_api_knows(manifest):
    """Return what is left of a manifest when Kubeflow's own types have read it."""
    models = importlib.import_module("kubeflow_trainer_api.models")
    return getattr(models, f"TrainerV1alpha1{manifest['kind']}").from_dict(manifest).to_dict()


def test_manifests_have_only_fields_of_the_schema(run, tmp_path):
    (tmp_path / "submit.yaml").write_text(JOB)
    printed = run(
        *MM_DIST, "submit", "--on", "kubernetes", "--dry-run", "--", "train.py", "--resume"
    )
    runtime, job = yaml.safe_load_all(printed)
    assert as_the_api_knows(runtime) == runtime
    assert as_the_api_knows(job) == job
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"]["limits"]["memory"] == "64Gi"
    assert job["spec"]["activeDeadlineSeconds"] == 86400
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "train"
    # A field that there is not would be lost, or refused.
    job["spec"]["trainer"]["numNode"] = 2
    assert as_the_api_knows(job) != job


def test_kubectl_gets_the_manifests(run, tmp_path):
    """The client is the user's: here one that keeps what it is given."""
    kubectl = tmp_path / "bin" / "kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/given.yaml\n')
    kubectl.chmod(0o755)
    (tmp_path / "submit.yaml").write_text(JOB)
    command = (*MM_DIST, "submit", "--on", "kubernetes", "--", "train.py")
    run(*command, PATH=f"{kubectl.parent}{os.pathsep}{os.environ['PATH']}")
    assert (tmp_path / "words").read_text().split() == ["apply", "--filename=-"]
    kinds = [one["kind"] for one in yaml.safe_load_all((tmp_path / "given.yaml").read_text())]
    assert kinds == ["TrainingRuntime", "TrainJob"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nodse: 2", "submit.yaml: nodse: unknown; there are: name, nodes"),
        ("nodes: two", "submit.yaml: nodes: 'two' cannot be used; it must be a whole number"),
        ("nodes: [2]", "submit.yaml: nodes: [2] cannot be used"),
        ("time: 1h", "submit.yaml: time: '1h' cannot be used; it must be [D-]HH:MM:SS"),
        ("memory: 64", "submit.yaml: memory: 64 cannot be used"),
        ("requeue: 3", "submit.yaml: requeue: 3 cannot be used; it must be true or false"),
        ("env: {A: [1]}", "submit.yaml: env.A: [1] cannot be used; it must be text in one line"),
        ('slurm: {comment: "x\\nrm -r"}', "submit.yaml: slurm.comment:"),
        ('slurm: {"x\\n#": y}', "submit.yaml: slurm.x"),
        ("ray: {max_failure: 3}", "submit.yaml: ray.max_failure: unknown"),
        ("kubernetes: {claims: {a: b}}", "kubernetes.claims.a: 'b' cannot be used; it must be an"),
        ("- nodes", "submit.yaml: : ['nodes'] cannot be used; it must be a mapping"),
        ("nodes: {", "submit.yaml cannot be read"),
        ("nodes: !!python/object/apply:os.getpid []", "submit.yaml cannot be read"),
        ("{gpus: 8, cpus: 4}", "cpus: 4 are too few for a node's 8 processes"),
    ],
)
def test_mistakes_in_the_file_are_named_in_one_line(run, tmp_path, content, message):
    (tmp_path / "submit.yaml").write_text(content)
    printed = run(*MM_DIST, "submit", "--on", "slurm", "--dry-run", "--", "train.py", status=2)
    assert message in printed
    assert printed.count("\n") == 1
