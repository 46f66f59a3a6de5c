"""(b) From the start of a training script to the end of its first step, on one and two processes.

The trainings of ``trainers/``, imports included. Two processes are started by torchrun, which all
of them document, and exchange gradients by gloo; the slower one counts. MMEngine starts several
processes on GPUs only. ``--quick`` leaves out two processes.
"""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

TITLE = "Start"
BASE = "by_hand"
AIM = "mm_runner takes at most 1.1 times as long as the script by hand"
SYSTEMS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
    "mmengine": "mmengine",
    "onedl_mmengine": "onedl-mmengine",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 3, False
QUICK_SYSTEMS = (BASE, "mm_runner")
_NUM_STEPS = 2


def measure(systems, quick, folder):
    (system,) = systems
    values = {"seconds on 1 process": time_start(system, 1, folder / "one")}
    if "mmengine" not in system and not quick:
        values["seconds on 2 processes"] = time_start(system, 2, folder / "two")
    return {system: values}


def time_start(system, num_processes, folder):
    folder.mkdir()
    launcher = [] if num_processes == 1 else ["-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={num_processes}"] if launcher else []
    command = [sys.executable, *launcher, "-m", "parts.start", system, str(folder)]
    begin = time.monotonic()
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    ends = [float(path.read_text()) for path in folder.glob("end_*")]
    if len(ends) != num_processes:  # a crash at exit comes after the first step
        raise RuntimeError(f"{system} failed on {num_processes} processes:\n{done.stderr}")
    return max(ends) - begin


class Clock:
    """Counts steps, and keeps the time at the begin of the second, which the first has ended by."""

    def __init__(self):
        self.steps = 0
        self.first_end = None

    def tick(self):
        self.steps += 1
        if self.steps == 2:
            self.first_end = time.monotonic()


def main():
    system, folder = sys.argv[1:]
    clock = Clock()
    trainer = importlib.import_module(f"trainers.{system}")
    trainer.train(_NUM_STEPS * int(os.environ.get("WORLD_SIZE", "1")), clock, Path(folder))
    if clock.steps == _NUM_STEPS:
        Path(folder, f"end_{os.environ.get('RANK', '0')}").write_text(str(clock.first_end))


if __name__ == "__main__":
    main()
