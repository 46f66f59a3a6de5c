"""``mm-dist simulate``."""

from importlib.util import find_spec

import pytest

from mm_dist._command import main

HAS_FAKE_GROUP = find_spec("torch.testing._internal.distributed.fake_pg") is not None
needs_fake_group = pytest.mark.skipif(not HAS_FAKE_GROUP, reason="torch has no fake group")


@needs_fake_group
def test_simulate_reports_time_and_memory_and_says_that_it_is_simulated(run_command, tmp_path):
    zoo = "import torch\ndef tiny():\n    return torch.nn.Linear(2, 2)\n"
    (tmp_path / "zoo.py").write_text(zoo)
    place = ["--world-size=4096", "--rank=37"]
    result = run_command("simulate", *place, "--model=zoo:tiny")
    assert result.returncode == 0, result.stderr
    label = "simulated: fake process group, no other ranks, no rendezvous, no communication"
    assert f"rank 37 of 4096, 8 per machine ({label})" in result.stdout
    memory = {
        line.rsplit(None, 2)[0]: line.split()[-1] for line in result.stdout.splitlines() if line
    }
    assert float(memory["before"]) > 50
    assert "wrap it (DDP)" in memory


@pytest.mark.skipif(HAS_FAKE_GROUP, reason="torch has a fake group")
def test_old_torch_is_told_what_it_lacks(capsys):
    assert main(["simulate", "--world-size=2"]) == 1
    assert "fake process group, which torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--world-size=0"], "--world-size=0"),
        (["--world-size=4", "--rank=4"], "--rank=4 must be at least 0"),
        (["--world-size=4", "--model=nowhere:f"], "--model=nowhere:f cannot be found"),
        (["--world-size=4", "--model=json:f"], "write MODULE:FACTORY"),
    ],
)
def test_bad_usage_is_explained(arguments, message, capsys):
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
