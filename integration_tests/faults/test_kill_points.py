"""A run that is killed at random moments, also while it saves, ends as if it never had been."""

import subprocess
import sys
from pathlib import Path


def test_killed_runs_end_bit_equal(request):
    kills = request.config.getoption("--kills")
    script = Path(__file__).with_name("killed_run.py")
    # In a process that has no other threads: it forks the runs that are killed.
    done = subprocess.run(
        [sys.executable, script, f"--kills={kills}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{kills} kills, ")
    assert "all bit-equal" in done.stdout
    sys.stdout.write(done.stdout)
