"""``mm-dist run`` with real processes; what its ranks run imports torch only where it has to."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from mm_dist._command import _worker

ALL_REDUCE = """
import os, sys, torch
from mm_dist import all_reduce, init_dist
info = init_dist()
total = torch.ones(1)
all_reduce(total)
open(f"{sys.argv[1]}{info.rank}", "w").write(f"{int(total)} {os.environ['OMP_NUM_THREADS']}")
"""
RAISE = """
import os, sys, time
print("told on stdout", flush=True)
print("told on stderr", file=sys.stderr)
def train():
    raise ValueError("boom")
if os.environ["RANK"] == "0":
    open("printed", "w").close()
while not os.path.exists("printed"):
    time.sleep(0.01)
if os.environ["RANK"] == "1":
    train()
time.sleep(60)
"""
ENDINGS = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(sys.argv[1]))
time.sleep(60)
"""
TELL = """
import json, os, pickle, sys
class Local: pass
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR")
told = {name: os.environ[name] for name in names}
told.update(argv=sys.argv[1:], path=sys.path[0], name=__name__, torch="torch" in sys.modules)
told["can pickle"] = type(pickle.loads(pickle.dumps(Local()))) is Local
with open(f"told{told['RANK']}.json", "w") as file:
    json.dump(told, file)
"""
ONCE = """
import os, pathlib, sys
attempts = pathlib.Path("attempts" + os.environ["RANK"])
before = attempts.read_text() if attempts.exists() else ""
attempts.write_text(before + os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"])
if not before and os.environ["RANK"] == "0":
    raise OSError("not yet")
"""
PREEMPTED = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
print("ready", flush=True)
while True:  # a signal that comes just before a sleep does not end it
    time.sleep(0.1)
"""


@pytest.fixture
def write_script(tmp_path):
    def write(source):
        script = tmp_path / "script.py"
        script.write_text(source)
        return script

    return write


def read_told(folder, rank):
    return json.loads((folder / f"told{rank}.json").read_text())


def test_two_jobs_at_once_finish_whichever_spelling(start_command, write_script, tmp_path):
    script = write_script(ALL_REDUCE)
    jobs = [
        start_command("run", "--nproc-per-node=2", script, "a"),
        start_command("run", "--nproc_per_node", "2", script, "b"),
    ]
    for job, name in zip(jobs, "ab", strict=True):
        _, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
        assert "OMP_NUM_THREADS" not in errors
        has_affinity = hasattr(os, "sched_getaffinity")
        num_cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, num_cores // 2)))
        for rank in "01":
            assert (tmp_path / f"{name}{rank}").read_text() == f"2 {threads}"


def test_rank_that_raises_is_said_last_and_has_a_log(run_command, write_script, tmp_path):
    script = write_script(RAISE)
    result = run_command("run", "--nproc-per-node=2", "--log-dir", "logs", script)
    assert result.returncode == 1
    *before, last = result.stderr.splitlines()
    assert last.startswith("rank 1 (local rank 1 on ")
    assert socket.gethostname() in last
    assert last.endswith("failed first: exit status 1: ValueError: boom")
    report = before[before.index("--- mm-dist run: the rank that failed first ---") :]
    assert report[1] == "Traceback (most recent call last):"
    assert report[-1] == "ValueError: boom"
    assert "_worker.py" not in result.stderr
    assert "ChildFailedError" not in result.stderr
    for rank in (0, 1):
        (folder,) = tmp_path.glob(f"logs/*/attempt_0/{rank}")
        assert (folder / "stdout.log").read_text() == "told on stdout\n"
        log = (folder / "stderr.log").read_text()
        assert log.startswith("told on stderr\n")
        assert ("ValueError: boom" in log) == (rank == 1)
    assert result.stderr.count("told on stderr") == 2


@pytest.mark.parametrize(
    ("ending", "status", "words"),
    [
        ("killed", 137, "SIGKILL: killed, often by the kernel because memory ran out"),
        ("75", 75, "exit status 75 (preempted: asks to be started again)"),
    ],
)
def test_status_is_that_of_the_rank_that_failed(run_command, write_script, ending, status, words):
    script = write_script(ENDINGS)
    result = run_command("run", "--nproc-per-node=2", script, ending)
    assert result.returncode == status
    assert f"failed first: {words}" in result.stderr.splitlines()[-1]


def test_kubernetes_variables_module_and_program(run_command, write_script, tmp_path):
    script = write_script(TELL)
    result = run_command("run", script, "--a", "b", PET_NPROC_PER_NODE=3, PET_NNODES=1)
    assert result.returncode == 0, result.stderr
    told = read_told(tmp_path, 2)
    assert told["WORLD_SIZE"] == told["LOCAL_WORLD_SIZE"] == "3"
    assert told["argv"] == ["--a", "b"]
    assert (told["path"], told["name"]) == (str(tmp_path), "__main__")
    assert told["can pickle"]
    assert not told["torch"], "the launcher imported torch before the script could"

    result = run_command("run", "--nproc-per-node", 1, "-m", "script", "c")
    assert result.returncode == 0, result.stderr
    assert read_told(tmp_path, 0)["argv"] == ["c"]
    assert read_told(tmp_path, 0)["can pickle"]

    program = tmp_path / "program.sh"
    program.write_text("#!/bin/sh\necho program $RANK $1\n")
    program.chmod(0o755)
    result = run_command("run", "--nproc-per-node=2", "--no_python", program, "d")
    assert sorted(result.stdout.splitlines()) == ["program 0 d", "program 1 d"]


@pytest.mark.parametrize(
    ("source", "message", "first_line"),
    [
        ("x = (\n", "SyntaxError: '(' was never closed (script.py, line 1)", '  File "script.py"'),
        ("import nowhere_else", "ModuleNotFoundError: No module named 'nowhere_else'", "Traceback"),
        ("raise OSError('a\\nb')", "OSError: a\nb", "Traceback"),
        ("raise SystemExit('no data')", "SystemExit: no data", "no data"),
    ],
    ids=["syntax", "import", "raise", "exit"],
)
def test_worker_shows_and_records_the_scripts_error_as_python_does(
    write_script, tmp_path, source, message, first_line
):
    write_script(source)
    result = subprocess.run(
        [sys.executable, _worker.__file__, "script", "script.py"],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": "error.json"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(first_line)
    assert "importlib" not in result.stderr
    assert "_worker.py" not in result.stderr
    record = json.loads((tmp_path / "error.json").read_text())["message"]
    assert record["message"] == message
    assert record["extraInfo"]["py_callstack"] in ("", result.stderr)


def test_max_restarts_starts_all_ranks_again(run_command, write_script, tmp_path):
    script = write_script(ONCE)
    result = run_command("run", "--nproc-per-node=2", "--max-restarts=2", script)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "attempts0").read_text() == "01"
    assert (tmp_path / "attempts1").read_text().endswith("1")


def test_preempted_ranks_end_the_launcher_with_their_status(start_command, write_script):
    job = start_command("run", "--nproc-per-node=1", write_script(PREEMPTED))
    assert job.stdout.readline() == "ready\n"
    job.send_signal(signal.SIGTERM)
    _, errors = job.communicate(timeout=60)
    assert job.returncode == 75
    assert "ended by signal 15; the ranks ask to be started again" in errors


def test_two_launchers_meet_statically_and_by_c10d(start_command, free_port, tmp_path):
    ports = {name: free_port() for name in ("static", "c10d")}
    places = {
        "static": ["--master-addr=127.0.0.1", f"--master_port={ports['static']}"],
        "c10d": ["--rdzv-backend=c10d", f"--rdzv_endpoint=127.0.0.1:{ports['c10d']}"],
    }
    jobs = []
    for name, place in places.items():
        script = tmp_path / name / "script.py"
        script.parent.mkdir()
        script.write_text(f"import os; os.chdir({str(script.parent)!r})\n{TELL}")
        for node in (0, 1):
            options = ["--nnodes=2", f"--node-rank={node}", *place]
            jobs.append(start_command("run", *options, script))
    for job in jobs:
        _, errors = job.communicate(timeout=120)
        assert job.returncode == 0, errors
    for name in places:
        told = [read_told(tmp_path / name, rank) for rank in (0, 1)]
        assert {each["WORLD_SIZE"] for each in told} == {"2"}
        assert {each["MASTER_ADDR"] for each in told} <= {"127.0.0.1", socket.getfqdn()}
