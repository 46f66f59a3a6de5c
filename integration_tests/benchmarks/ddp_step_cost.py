"""What MMDistributedDataParallel adds to a step of torch's DistributedDataParallel.

Starts two gloo ranks by itself, and lets four wrappers of equal models take turns in one run:

* ``A`` and ``A'``: torch's wrapper, twice. Their difference is what the machine's noise makes of
  no difference at all.
* ``B``: MMDistributedDataParallel; ``B-``: the same with ``check_forward=False``.

Once forward and backward alone, once a whole training step: ``train_step`` of ours against the
same calls written by hand around torch's. Per round, each takes a number of steps; the median of
these is one sample, and the table shows the median over rounds of the difference to ``A``'s, with
the quartiles. Times of the thread's processor (``cpu``) leave out the waiting for the other rank.

Run: ``python ddp_step_cost.py [--rounds 60] [--steps 50] [--json FILE]``. It prints, and asserts
nothing.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import gc
import json
import platform
import statistics
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_dist import MMDistributedDataParallel

_WARM_UP_STEPS = 60  # past the first steps, in which buckets are rebuilt and all is watched


class Model(nn.Module):
    """A small model in the shape that the training loops know: backbone, neck, head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.neck = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)

    def data_preprocessor(self, data, training):  # noqa: ARG002 (the loops' signature)
        return data

    def forward(self, inputs, targets, mode):  # noqa: ARG002
        outputs = self.head(self.neck(self.backbone(inputs)))
        return {"loss": nn.functional.cross_entropy(outputs, targets)}

    def parse_losses(self, losses):
        loss = losses["loss"]
        return loss, {"loss": loss.detach()}


class Optim:
    """As little as an optimizer wrapper can be."""

    def __init__(self, model) -> None:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def optim_context(self, model):  # noqa: ARG002
        return contextlib.nullcontext()

    def update_params(self, loss) -> None:
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def forward_backward(wrapper, data, optim) -> None:
    wrapper(**data, mode="loss")["loss"].backward()
    optim.optimizer.zero_grad()


def step_by_hand(wrapper, data, optim):
    with optim.optim_context(wrapper):
        batch = wrapper.module.data_preprocessor(data, True)  # noqa: FBT003
        losses = wrapper(**batch, mode="loss")
    loss, log_vars = wrapper.module.parse_losses(losses)
    optim.update_params(loss)
    return log_vars


def own_step(wrapper, data, optim):
    return wrapper.train_step(data, optim)


def time_steps(step, wrapper, data, optim, num_steps):
    """Return the median time of a step in microseconds, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(num_steps):
        begin, begin_cpu = time.perf_counter(), time.thread_time()
        step(wrapper, data, optim)
        end_cpu, end = time.thread_time(), time.perf_counter()
        clock.append((end - begin) * 1e6)
        processor.append((end_cpu - begin_cpu) * 1e6)
    return statistics.median(clock), statistics.median(processor)


def build_candidates():
    torch.manual_seed(0)
    wrappers = {
        "A": DistributedDataParallel(Model()),
        "A'": DistributedDataParallel(Model()),
        "B": MMDistributedDataParallel(Model()),
        "B-": MMDistributedDataParallel(Model(), check_forward=False),
    }
    return {name: (wrapper, Optim(wrapper)) for name, wrapper in wrappers.items()}


def measure(candidates, data, is_whole_step, rounds, num_steps):
    names = list(candidates)
    samples = {name: [] for name in names}
    steps = {name: own_step if name.startswith("B") else step_by_hand for name in names}
    if not is_whole_step:
        steps = dict.fromkeys(names, forward_backward)
    for name in names:
        time_steps(steps[name], *_in_order(candidates[name], data), _WARM_UP_STEPS)
    for index in range(rounds):
        # Another one begins in each round: none always runs first, or after the same one.
        for name in names[index % 4 :] + names[: index % 4]:
            order = _in_order(candidates[name], data)
            samples[name].append(time_steps(steps[name], *order, num_steps))
    return samples


def _in_order(candidate, data):
    wrapper, optim = candidate
    return wrapper, data, optim


def compare(samples, column):
    base = [sample[column] for sample in samples["A"]]
    found = {"A": {"median": statistics.median(base)}}
    for name in ("A'", "B", "B-"):
        added = [own[column] - other for own, other in zip(samples[name], base, strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        found[name] = {"added": middle, "quartiles": [low, high]}
    return found


def run_rank(rank, store, arguments):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    generator = torch.Generator().manual_seed(rank)
    data = {
        "inputs": torch.randn(16, 32, generator=generator),
        "targets": torch.randint(10, (16,), generator=generator),
    }
    candidates = build_candidates()
    gc.collect()
    gc.disable()
    report = {}
    for title, is_whole_step in (("forward and backward", False), ("training step", True)):
        samples = measure(candidates, data, is_whole_step, arguments.rounds, arguments.steps)
        report[title] = {"clock": compare(samples, 0), "cpu": compare(samples, 1)}
    if rank == 0:
        show(report, arguments)
    dist.barrier()
    time.sleep(0.05)  # gloo's threads still release objects
    dist.destroy_process_group()


def show(report, arguments) -> None:
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, mm-dist "
        f"{mm_dist.__version__}; 2 gloo ranks, 1 thread each; {arguments.rounds} rounds of "
        f"{arguments.steps} steps; microseconds per step"
    )
    print(f"{'':22} {'':6} {'A':>8}   {'A-prime - A':>24} {'B - A':>24} {'B- - A':>24}")
    for title, columns in report.items():
        for column, found in columns.items():
            cells = [f"{found['A']['median']:8.1f}  "]
            for name in ("A'", "B", "B-"):
                low, high = found[name]["quartiles"]
                cells.append(f"{found[name]['added']:+8.1f} [{low:+6.1f}, {high:+6.1f}]")
            print(f"{title:22} {column:6} " + " ".join(cells))
    if arguments.json:
        settings = {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "model": "MLP 32-64-64-64-10, batch 16",
            "rounds": arguments.rounds,
            "steps": arguments.steps,
            "unit": "microseconds per step",
        }
        arguments.json.write_text(json.dumps({**settings, "results": report}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="rounds of all candidates")
    parser.add_argument("--steps", type=int, default=50, help="steps of one candidate in a round")
    parser.add_argument("--json", type=Path, help="write the numbers there too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(run_rank, (Path(directory) / "store", arguments), nprocs=2)


if __name__ == "__main__":
    main()
