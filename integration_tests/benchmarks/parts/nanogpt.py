"""(j) The whole of a small training: nanoGPT's CPU recipe for characters, from start to end.

The model, sizes and settings that nanoGPT's README gives for shakespeare_char without a GPU: four
layers of width 128, batches of 12 windows of 64 characters, AdamW, warm-up and cosine, clipping,
evaluation on 20 batches of each split every 250 steps and at the end, not before the first step; a
line for each step, and a checkpoint where the evaluation is the best so far. A megabyte of made-up
text takes the place of Shakespeare's. ``original`` is a plain script, ``mm_runner`` and
``mm_runner_yaml`` do the same with the Runner, from Python and with ``mm-runner train``. All start
from the same weights and draw the same batches, in processes of their own with one thread.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

from nanogpt_recipe.recipe import write_text

TITLE = "nanoGPT"
BASE = "original"
AIM = "at most 1.01 of the original script's time, to the same loss"
SYSTEMS = {BASE: "torch", "mm_runner": "mm-runner", "mm_runner_yaml": "mm-runner"}
ROUNDS, QUICK_ROUNDS, TOGETHER = 2, 0, False
_FOLDER = Path(__file__).parents[1] / "nanogpt_recipe"
_YAML = ["-m", "mm_runner", "train", str(_FOLDER / "recipe.yaml"), "--cfg-options"]


def measure(systems, quick, folder):
    (system,) = systems
    write_text(folder)
    num_steps = 40 if quick else 2000
    arguments = {
        BASE: [str(_FOLDER / "original.py"), str(num_steps)],
        "mm_runner": [str(_FOLDER / "in_python.py"), str(num_steps)],
        "mm_runner_yaml": [*_YAML, f"train_cfg.max_iters={num_steps}"],
    }[system]
    begin = time.perf_counter()
    with (folder / "out.txt").open("w") as out:
        done = subprocess.run(
            [sys.executable, *arguments], check=False, cwd=folder, stdout=out, stderr=out
        )
    seconds = time.perf_counter() - begin
    text = (folder / "out.txt").read_text()
    if done.returncode != 0:
        raise RuntimeError(f"{system} failed:\n{text[-2000:]}")
    steps, loss = read_end(system, text, folder)
    if steps != num_steps:
        raise RuntimeError(f"{system} ran {steps} steps of {num_steps}.")
    return {
        system: {f"seconds, {num_steps:,} steps": seconds, "loss on the validation split": loss}
    }


def read_end(system, text, folder):
    """Return the number of the last step, and the loss of its evaluation."""
    if system == BASE:
        step, loss = re.findall(r"^step (\d+): train loss .*, val loss (.+)$", text, re.MULTILINE)[
            -1
        ]
        return int(step), float(loss)
    (scalars,) = (folder / "work_dir").glob("*/scalars.jsonl")
    end = json.loads(scalars.read_text().splitlines()[-1])
    return end["step"], end["val_loss"]
