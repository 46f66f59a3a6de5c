"""What ``mm-dist submit`` gives to the clients of engines; nothing is started."""

import json
import shlex
import sys

import pytest

from mm_dist._command import main

EVERYTHING = (
    "--nodes=2",
    "--processes-per-node=4",
    "--cpus=16",
    "--gpus=8",
    "--memory=64G",
    "--time=1-02:00:30",
    "--requeue",
)


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """``printed(engine, *options, script=...)`` returns what the client would be given."""
    monkeypatch.chdir(tmp_path)

    def run(engine, *options, script=("train.py", "--resume"), status=0):
        arguments = ["submit", "--on", engine, "--dry-run", *options, "--", *script]
        assert main(arguments) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


def options_of(script):
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH ")]
    return dict(line.removeprefix("#SBATCH --").partition("=")[::2] for line in lines)


def test_slurm_script_asks_for_a_nodes_resources(printed):
    script = printed("slurm", *EVERYTHING, "--option=partition=gpu", "--option=comment=two words")
    found = options_of(script)
    expected = {"nodes": "2", "ntasks-per-node": "4", "cpus-per-task": "4", "gres": "gpu:8"}
    expected |= {"mem": "64G", "time": "1560:30", "partition": "gpu", "job-name": "train"}
    expected |= {"requeue": "", "signal": "USR1@60", "comment": "'two words'"}
    assert found.items() >= expected.items()
    command = f"srun --kill-on-bad-exit=1 {sys.executable} train.py --resume\n"
    assert command in script
    assert 'if [ "$status" -eq 75 ]; then scontrol requeue "$SLURM_JOB_ID"; fi' in script


def test_slurm_options_of_the_user_win(printed):
    found = options_of(
        printed("slurm", *EVERYTHING, "--option=signal=USR1@120", "--option=gres=gpu:a100:8")
    )
    assert (found["signal"], found["gres"]) == ("USR1@120", "gpu:a100:8")
    assert "requeue" not in options_of(printed("slurm", *EVERYTHING, "--no-requeue"))


def test_slurm_script_of_a_module_with_defaults(printed):
    script = printed("slurm", script=("-m", "pkg.train", "a b.yaml"))
    assert options_of(script) == {
        "job-name": "train",
        "output": "%x-%j.log",
        "open-mode": "append",
        "nodes": "1",
        "ntasks-per-node": "1",
        "no-requeue": "",
    }
    assert script.endswith(f"{sys.executable} -m pkg.train 'a b.yaml'\n")
    assert "scontrol" not in script


def test_ray_job_has_a_driver_with_a_worker_for_each_process(printed):
    words = shlex.split(printed("ray", *EVERYTHING, "--option=storage_path=/shared"))
    assert words[:4] == ["ray", "job", "submit", "--no-wait"]
    driver = words[words.index("--") + 1 :]
    assert driver[:3] == ["python", "-m", "mm_dist._command._ray_driver"]
    assert driver[4:] == ["train.py", "--resume"]
    assert json.loads(driver[3]) == {
        "name": "train",
        "num_workers": 8,
        "resources_per_worker": {"CPU": 4.0, "GPU": 2.0, "memory": 16 * 2**30},
        "storage_path": "/shared",
        "max_failures": 3,
    }


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        ("slurm", ["--nodes=0"], "--nodes: '0' cannot be used; it must be a whole number"),
        ("slurm", ["--name=A B"], "--name: 'A B' cannot be used; it must be lower-case"),
        ("slurm", ["--option=Partition=x"], "--slurm.Partition: unknown"),
        ("slurm", ["--gpus=4", "--cpus=2"], "cpus: 2 are too few for a node's 4 processes"),
        ("ray", ["--option=max_failure=1"], "Did you mean 'max_failures'?"),
        ("kubernetes", [], "image: Kubernetes needs one"),
    ],
)
def test_bad_options_are_explained(printed, engine, options, message):
    assert message in printed(engine, *options, status=2)


def test_a_script_is_needed(printed):
    assert "write the script after --" in printed("slurm", script=(), status=2)


def test_an_absent_client_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", "--on", "slurm", "--", "train.py"]) == 1
    assert "sbatch cannot be started: No such file" in capsys.readouterr().err


def test_clients_get_the_script_and_their_status_is_ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = tmp_path / "sbatch"
    client.write_text("#!/bin/sh\n/bin/cat > given\nexit 7\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", "--on", "slurm", "--nodes=3", "--", "train.py"]) == 7
    assert options_of((tmp_path / "given").read_text())["nodes"] == "3"
