"""What the hang report adds to a training step of about 20 ms.

Starts two gloo ranks by itself. In one run, three settings take turns on the same model:

* ``off`` and ``off'``: no hang report, twice. Their difference is what the machine's noise makes of
  no difference at all.
* ``on``: its thread looks as often as it does with the timeout given.

Per round, each takes a number of steps; the median of these is one sample, and the table shows the
median over rounds of the difference to ``off``, with the quartiles, and as a part of the step.
``clock`` is the time of a step; ``cpu`` that of all threads of the process, waits left out: there a
thread that looks now and then cannot hide behind the median. It is that of all steps of a round.

Since the noise is larger than the cost, the two things that happen are timed by themselves, too:
one look of the thread, times how often it looks, and the counting of iterations.

Run: ``python hang_report_cost.py [--rounds 30] [--steps 50] [--timeout 600] [--json FILE]``. It
prints, and asserts nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import gc
import json
import os
import platform
import socket
import statistics
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn

import mm_dist
from mm_dist._progress import advance_iteration
from mm_dist.diagnose._hang_report import start_hang_report
from mm_dist.diagnose._report import plan_timing
from mm_dist.diagnose._sample import Observer

_WARM_UP_STEPS = 20
_STEP_S = 0.02
_NAMES = ("off", "off'", "on")


class Trainer:
    """A model, its optimizer, and work that fills up the step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        self.model = mm_dist.MMDistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.inputs = torch.randn(64, 256)
        self.filling = torch.randn(128, 128)
        self.num_fillings = 0

    def fill_up(self) -> None:
        """Choose how much more work there is, so that a step takes about 20 ms."""
        short = statistics.median(self.time_steps(_WARM_UP_STEPS)[0])
        begin = time.perf_counter()
        for _ in range(100):
            self.filling @ self.filling
        one = (time.perf_counter() - begin) / 100
        # The same on both ranks: neither waits for the other's longer work.
        found = torch.tensor(max(_STEP_S - short, 0.0) / one)
        mm_dist.all_reduce(found, op="mean")
        self.num_fillings = int(found)

    def step(self) -> None:
        advance_iteration()
        for _ in range(self.num_fillings):
            self.filling @ self.filling
        self.model(self.inputs).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def time_steps(self, num_steps):
        """Return the seconds of each step, and those of the processor per step."""
        clock = []
        begin_cpu = time.process_time()
        for _ in range(num_steps):
            begin = time.perf_counter()
            self.step()
            clock.append(time.perf_counter() - begin)
        return clock, (time.process_time() - begin_cpu) / num_steps


def measure(trainer, info, arguments):
    samples = {name: [] for name in _NAMES}
    limit = timedelta(seconds=arguments.timeout)
    for index in range(arguments.rounds):
        # Another one begins in each round: none always runs first, or after the same one.
        for name in _NAMES[index % 3 :] + _NAMES[: index % 3]:
            report = start_hang_report(info, limit) if name == "on" else None
            mm_dist.barrier()
            clock, cpu = trainer.time_steps(arguments.steps)
            samples[name].append((statistics.median(clock), cpu))
            if report is not None:
                report.stop()
    return samples


def compare(samples, column):
    base = [sample[column] for sample in samples["off"]]
    step = statistics.median(base)
    found = {"off": {"median_ms": step * 1e3}}
    for name in _NAMES[1:]:
        added = [own[column] - other for own, other in zip(samples[name], base, strict=True)]
        low, middle, high = (value * 1e6 for value in statistics.quantiles(added, n=4))
        share = middle * 1e-6 / step
        found[name] = {"added_us": middle, "quartiles_us": [low, high], "share": share}
    return found


def time_parts(arguments):
    """Return the costs of the two things that happen, per step of 20 ms."""
    observer = Observer(threading.get_ident(), arguments.timeout)
    look = time_call(observer.look, 2000)
    interval = plan_timing(arguments.timeout, 2).interval_s
    return {
        "one_look_us": look * 1e6,
        "looks_per_step": _STEP_S / interval,
        "looks_us_per_step": look * 1e6 * _STEP_S / interval,
        "counting_us_per_step": time_call(advance_iteration, 20000) * 1e6,
    }


def time_call(function, times):
    begin = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - begin) / times


def run_rank(rank, port, arguments):
    place = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": rank}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    info = mm_dist.init_dist("pytorch", device_type="cpu", timeout=120, hang_report=False)
    names = [thread.name for thread in threading.enumerate()]
    assert "mm_dist-hang-report" not in names, "off is off"
    trainer = Trainer()
    trainer.time_steps(_WARM_UP_STEPS)
    trainer.fill_up()
    gc.collect()
    gc.disable()
    samples = measure(trainer, info, arguments)
    report = {"clock": compare(samples, 0), "cpu": compare(samples, 1)}
    if rank == 0:
        show(report, time_parts(arguments), arguments)
    mm_dist.barrier()


def show(report, parts, arguments) -> None:
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, mm-dist "
        f"{mm_dist.__version__}; 2 gloo ranks, 1 thread each; {arguments.rounds} rounds of "
        f"{arguments.steps} steps; a collective may take {arguments.timeout:g} s"
    )
    print(f"{'':6} {'off, ms':>8}  {'off-prime - off, us (of the step)':>42} {'on - off':>42}")
    for column, found in report.items():
        cells = [f"{found['off']['median_ms']:8.2f} "]
        for name in _NAMES[1:]:
            low, high = found[name]["quartiles_us"]
            share = f"({found[name]['share']:+.2%})"
            cells.append(f"{found[name]['added_us']:+10.1f} [{low:+8.1f}, {high:+8.1f}] {share:>9}")
        print(f"{column:6} " + " ".join(f"{cell:>42}" for cell in cells).lstrip())
    total = parts["looks_us_per_step"] + parts["counting_us_per_step"]
    print(
        f"by themselves: one look {parts['one_look_us']:.1f} us, {parts['looks_per_step']:.3f} "
        f"looks per step; counting {parts['counting_us_per_step']:.2f} us per step; together "
        f"{total:.2f} us per step, {total * 1e-6 / _STEP_S:.4%} of 20 ms"
    )
    if arguments.json:
        settings = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "timeout_s": arguments.timeout,
        }
        found = {**settings, "results": report, "parts": parts}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def find_free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of all settings")
    parser.add_argument("--steps", type=int, default=50, help="steps of one setting in a round")
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        help="seconds of a collective; from 20 on, one look per second",
    )
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    mp.spawn(run_rank, (find_free_port(), arguments), nprocs=2)


if __name__ == "__main__":
    main()
