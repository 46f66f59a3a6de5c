"""Jobs of many ranks may open more files than the usual 1024."""

import json
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such limit on Windows")

PROVIDE = """
import json, os, resource
from mm_dist._open_files import provide_files

allowed, most, num_ranks = (int(os.environ[name]) for name in ("ALLOWED", "MOST", "RANKS"))
# What a test may have depends on the machine; less can always be had.
limits = (allowed, min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
said = provide_files(num_ranks)
print(json.dumps([*resource.getrlimit(resource.RLIMIT_NOFILE), said]))
"""
LAUNCH = """
import resource, sys
from pathlib import Path

most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
from mm_dist._command import main

sys.exit(main(["run", "--nproc-per-node=2", str(Path(__file__).with_name("join.py"))]))
"""
JOIN = r"""
import os, resource, sys, time
import mm_dist

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
if sys.argv[1:] == ["lower"]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
mm_dist.init_dist(device_type="cpu", timeout=60)
# In one piece: ranks share the launcher's console.
os.write(1, f"{before} then {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}\n".encode())
mm_dist.barrier()
time.sleep(0.05)  # gloo's threads still release objects
os._exit(0)
"""


def provide(run_script, allowed, most, num_ranks):
    result = run_script(PROVIDE, ALLOWED=str(allowed), MOST=str(most), RANKS=str(num_ranks))
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("allowed", "most", "num_ranks", "expected"),
    [
        (1024, 4000, 64, 1024),
        (1024, 4000, 100, 512 + 800),
        (2000, 4000, 100, 2000),
        (1024, 4000, 1000, 4000),
    ],
    ids=["enough", "raised", "more than enough", "as far as allowed"],
)
def test_limit_is_raised_to_what_the_ranks_need(run_script, allowed, most, num_ranks, expected):
    found = provide(run_script, allowed, most, num_ranks)
    assert found == [expected, most, None]


def test_a_system_that_allows_too_few_is_named(run_script):
    allowed, _, said = provide(run_script, 1024, 2000, 1000)
    assert allowed == 2000
    assert "needs up to 3000 open files in a process, and this system allows 2000" in said


def test_ranks_and_launcher_have_what_they_need(run_script, start_ranks, tmp_path):
    for process in start_ranks(JOIN, 2, "lower"):
        output, errors = process.communicate(timeout=120)
        assert output == "256 then 528\n", errors
    # Where a launcher keeps the store it is the one that needs them; its ranks inherit what it has.
    (tmp_path / "join.py").write_text(JOIN)
    result = run_script(LAUNCH)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("528 then 528\n") == 2, result.stderr
