"""(a) What a step costs in a trainer's loop, over the same loop by hand.

The same tiny model, data and optimizer for all, on the CPU with one thread; each writes its loss
every 50 steps, trainers through their default hooks. Time is noted at every hundredth step inside
of the model; a value is the median over the hundreds after step 500 of a run of 1,000, and over the
last 5,000 steps of a long one: what grows with the run's length shows as their difference.
"""

import importlib
import itertools
import statistics

import torch
from trainers import PEERS

TITLE = "Step"
BASE = "by_hand"
AIM = "mm_runner adds at most half of what lightning_fabric adds, the least of all, and flat"
SYSTEMS = {
    BASE: "torch",
    "mm_runner": "mm-runner",
    **PEERS,
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 5, 3, False
QUICK_SYSTEMS = (BASE, "mm_runner", "lightning_fabric")
_SHORT = 1_000


def measure(systems, quick, folder):
    torch.set_num_threads(1)
    (system,) = systems
    values = {}
    for num_steps in (_SHORT,) if quick else (_SHORT, 100_000):
        values[f"microseconds of a step, {num_steps:,} steps"] = time_steps(
            system, num_steps, folder / str(num_steps)
        )
    return {system: values}


def time_steps(system, num_steps, folder):
    # Not on the path by its name: a module in trainers/ is called as the trainer itself.
    trainer = importlib.import_module(f"trainers.{system}")
    clock = importlib.import_module("trainers.task").StepClock()
    folder.mkdir()
    trainer.train(num_steps, clock, folder)
    if len(clock.wall) != num_steps // clock.STRIDE:
        raise RuntimeError(f"{system} ran {len(clock.wall)} hundreds of steps of {num_steps}.")
    times = clock.wall[(500 if num_steps == _SHORT else num_steps - 5000) // clock.STRIDE :]
    spans = (end - begin for begin, end in itertools.pairwise(times))
    return statistics.median(spans) * 1e6 / clock.STRIDE
