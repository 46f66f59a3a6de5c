"""A machine with NPUs, as far as torch and our packages can see: the stand-in is installed.

Torch imports what is installed for it when it is imported, so this is done before that, for this
process and those that it starts.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
# The formulas and cases are those of mm-npu's own tests.
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "packages" / "mm-npu" / "tests")]

from stand_in_site import has_device, make_site  # noqa: E402

SITE = str(make_site())
sys.path.insert(0, SITE)

import pytest  # noqa: E402
import torch  # noqa: E402
import torch_npu  # noqa: E402
from torch_npu._calls import RECORDED  # noqa: E402

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
DEVICE = "npu" if has_device() else "cpu"


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_device: torch has no npu before 2.13 here")


def pytest_collection_modifyitems(items):
    reason = f"torch {torch.__version__}: the stand-in adds no device to torch before 2.13"
    for item in items:
        if item.get_closest_marker("needs_device") and not has_device():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _fresh():
    """Let each test see its own calls of the device, and start on the first one."""
    assert torch_npu.__file__.startswith(SITE)
    torch.npu.set_device(0)
    RECORDED.clear()


@pytest.fixture
def calls():
    """Return what was asked of the device in this test: names and arguments."""
    return RECORDED


def variables(*, with_npu):
    """Return the environment of a process with or without the stand-in."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": "120",
        "PYTHONPATH": SITE if with_npu else "",
        "PYTHONWARNINGS": "",
    }


@pytest.fixture
def run_python(tmp_path):
    """``run_python(*arguments)`` runs Python in ``tmp_path`` to its end, by default with NPUs."""

    def run(*arguments, with_npu=True, check=True, **more):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env={**variables(with_npu=with_npu), **more},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
        return done

    return run
