"""``mm-dist check`` with real ranks, and its tables."""

from mm_dist._command import main
from mm_dist._command._check import describe_speed, find_differences


def variables(rank, world_size, port):
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }


def test_healthy_ranks_are_measured(run_command, tmp_path):
    (tmp_path / "config").write_text("lr: 1")
    options = ["--config", "config"]
    result = run_command("run", "--nproc-per-node=2", "-m", "mm_dist", "check", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("2 of 2 ranks, launcher pytorch") == 1, "only rank 0 reports"
    table = result.stdout.partition("all-reduce with gloo:\n")[2].splitlines()
    assert [int(row.split()[0]) for row in table[1:6]] == [8, 1024, 2**16, 2**20, 2**24]
    assert all(float(row.split()[1]) > 0 for row in table[1:6])
    assert "problem" not in result.stdout


def test_rank_with_another_config_is_named(start_command, free_port, tmp_path):
    # As under mpirun: no launcher keeps a store.
    port = free_port()
    for rank in (0, 1):
        (tmp_path / f"config{rank}").write_text(f"lr: {rank}")
    jobs = [
        start_command("check", "--config", f"config{rank}", **variables(rank, 2, port))
        for rank in (0, 1)
    ]
    outputs = [job.communicate(timeout=120) for job in jobs]
    assert [job.returncode for job in jobs] == [1, 0]
    assert "2 of 2 ranks, launcher pytorch" in outputs[0][0]
    assert "problem: rank 1 on" in outputs[0][0]
    assert "its config is sha256:" in outputs[0][0]
    assert not outputs[1][0], "only rank 0 reports"


def test_absent_ranks_are_named_in_time(start_command, free_port):
    # Of two jobs, one lacks its second rank, and the other one its first.
    port = free_port()
    lonely = start_command("check", "--timeout=1", **variables(0, 3, port))
    orphan = start_command("check", "--timeout=1", **variables(1, 2, free_port()))
    _, errors = lonely.communicate(timeout=120)
    assert lonely.returncode == 1
    assert "1 of 3 ranks came to 127.0.0.1:" in errors
    assert "within 1 s; missing: rank 1-2" in errors
    _, errors = orphan.communicate(timeout=120)
    assert orphan.returncode == 1
    assert "Rank 1 cannot reach rank 0 at 127.0.0.1:" in errors


def test_one_process_is_fine_by_itself(run_command):
    result = run_command("check")
    assert result.returncode == 0
    assert "1 of 1 ranks, launcher none" in result.stdout


def test_a_config_that_is_missing_is_an_error(run_command):
    result = run_command("check", "--config", "missing")
    assert result.returncode == 1
    assert "No such file or directory: 'missing'" in result.stderr


def test_a_backend_that_nobody_knows_is_bad_usage_before_ranks_meet(capsys, monkeypatch):
    # Nobody listens there: whoever opened the store would wait for a minute.
    for name, value in variables(1, 2, 1).items():
        monkeypatch.setenv(name, str(value))
    assert main(["check", "--backend=ncll"]) == 2
    assert capsys.readouterr().err.startswith("mm-dist: backend='ncll' is not known; there are: ")


def facts(**compared):
    return {"host": "h", "compared": {"torch": "2.13.0", "device count": "8", **compared}}


def test_differences_are_those_from_most_ranks():
    table = {0: facts(torch="2.6.0"), 1: facts(), 2: facts(), 3: facts(**{"mm-amp": "0.1.0"})}
    problems = find_differences(table)
    assert problems == [
        "rank 0 on h differs: its torch is 2.6.0, and 2.13.0 on the others",
        "rank 3 on h differs: its mm-amp is 0.1.0, and not installed on the others",
    ]
    assert find_differences({0: facts(), 1: facts()}) == []


def test_bus_bandwidth_does_not_depend_on_the_number_of_ranks():
    # A ring sends 2 * (n - 1) / n of the tensor over each link.
    speed = describe_speed({rank: {10**9: 1.0 - rank / 10} for rank in range(8)})
    assert speed.splitlines()[1].split() == ["1000000000", "1000.000", "1.750", "0"]
