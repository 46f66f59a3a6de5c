"""The training runs that the tests start, and how their results are compared."""

import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from mm_runner.checkpoint import load_checkpoint_file

# What users start their commands from: there, examples/ is.
HERE = Path(__file__).parents[2] / "packages" / "mm-runner"
SCRIPT, CONFIG = "examples/distributed_training.py", "examples/digits.yaml"
TEMPLATES = HERE / "examples" / "cluster"
EPOCHS = 2
# Of a run by configuration; the hook makes it last until somebody touches the file "hurry".
FEW_EPOCHS = ("--cfg-options", "train_cfg.max_epochs=2")
SLOW = 'custom_hooks=[{"type": "pace:SlowUntilHurried"}]'
# Of whatever may have started the tests.
_JOB_VARIABLES = ("SLURM_", "SRUN_", "SBATCH_", "OMPI_", "PMI", "MPI_", "PET_")
OPTIONS = (f"--epochs={EPOCHS}", "--device=cpu")


def user_environment(**more: str) -> Mapping[str, str]:
    """Return the environment of a user on a machine without accelerators, in no job."""
    programs = Path(sys.executable).parent
    outside = {k: v for k, v in os.environ.items() if not k.startswith(_JOB_VARIABLES)}
    return {
        **outside,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        # Equal everywhere: with it, the order in which numbers are added up.
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "CUDA_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "",
        **more,
    }


def read_checkpoint(work_dir: Path) -> Mapping[str, Any]:
    """Return the newest checkpoint of a run."""
    newest = (work_dir / "last_checkpoint").read_text().strip()
    return load_checkpoint_file(work_dir / newest)


def assert_equal_runs(work_dir: Path, other: Path) -> None:
    """Fail unless two runs have come to the same parameters, bit by bit."""
    found, expected = (read_checkpoint(one)["state_dict"] for one in (work_dir, other))
    assert found.keys() == expected.keys()
    different = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert not different, f"{work_dir} and {other} differ in {different}"


def accuracy(output: str) -> float:
    """Return the test accuracy, in percent, that the example reports once."""
    (found,) = re.findall(r"test accuracy: ([\d.]+) %", output)
    return float(found)


def wait_until_it_trains(work_dir: Path, world_size: int, is_alive: Callable[[], bool]) -> None:
    """Wait until every process of a run with the hook of :data:`SLOW` is training.

    Raises:
        RuntimeError: If it ends before that, or does not come so far.
    """
    end = time.monotonic() + 300
    wanted = [work_dir / f"trains_{rank}_of_{world_size}" for rank in range(world_size)]
    while not all(file.exists() for file in wanted):
        if time.monotonic() > end or not is_alive():
            there = sorted(file.name for file in work_dir.glob("*"))
            raise RuntimeError(f"It does not train on {world_size} ranks; there is {there}.")
        time.sleep(0.05)


def hurry(work_dir: Path) -> None:
    """Let a run with the hook of :data:`SLOW` train as fast as it can, also after a restart."""
    (work_dir / "hurry").touch()
