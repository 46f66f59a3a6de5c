"""The subcommands of :mod:`mm_runner.tools`: arguments and output."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from ._configuration import add_config_arguments, add_launcher, load_config

_MOST_ROWS = 12


def check(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Show what would be trained.

    Build everything without data on the meta device, start no process group, and print the plan:
    model, parameters, schedule, batch, memory, acceleration. Exit status 1 if something is wrong.
    """
    add_config_arguments(parser, launcher=False)
    _add_number(parser, "--world-size", 1, "processes to plan for")

    def run(options: Namespace) -> None:
        from mm_runner.tools import make_plan  # noqa: PLC0415 - imports torch

        sys.stdout.write(make_plan(load_config(options), world_size=options.world_size))

    return run


def find_lr(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Find a learning rate.

    Train with a learning rate that grows from step to step until the loss grows, and suggest the
    one where it falls fastest. Nothing is left behind, and the configuration is not changed.
    """
    add_config_arguments(parser, work_dir=False)
    _add_number(parser, "--min-lr", 1e-7, "first rate")
    _add_number(parser, "--max-lr", 10.0, "last rate")
    _add_number(parser, "--steps", 100, "optimizer steps")
    parser.add_argument("--out", metavar="FILE", help="draw the losses there: .png or .svg")

    def run(options: Namespace) -> None:
        import mm_dist  # noqa: PLC0415 - imports torch, as does the next
        from mm_runner.tools import find_learning_rate, plot_rates  # noqa: PLC0415

        cfg, rates = load_config(options), {"min_lr": options.min_lr, "max_lr": options.max_lr}
        report = find_learning_rate(cfg, **rates, steps=options.steps)
        points = report.points
        _print(f"{'lr':>10}{'loss':>12}{'smoothed':>12}")
        for point in points[:: -(-len(points) // _MOST_ROWS) or 1]:
            _print(f"{point.lr:>10.2e}{point.loss:>12.4g}{point.smoothed:>12.4g}")
        if report.diverged:
            _print(f"The loss diverged after {len(points)} steps.")
        if report.suggestion is None:
            _print("No suggestion: the loss falls nowhere. Give other rates, or more --steps.")
        else:
            rate = f"{report.suggestion:.2g}"
            _print(f"Suggested: optim_wrapper.optimizer.lr={rate}, where the loss falls fastest.")
        if options.out is not None and mm_dist.is_main_process():
            _print(str(plot_rates(points, report.suggestion, options.out)))

    return run


def find_batch_size(parser: ArgumentParser) -> Callable[[Namespace], int]:
    """Find the largest batch that fits.

    Take training steps with larger and larger batches in one process, until the memory is full. On
    the CPU the system may end a process that asks for too much: give --max there. Nothing is left
    behind, and the configuration is not changed.
    """
    add_config_arguments(parser, work_dir=False, launcher=False)
    _add_number(parser, "--start", 2, "first batch")
    _add_number(parser, "--max", 1024, "largest batch")

    def run(options: Namespace) -> int:
        from mm_runner.tools import find_batch_size  # noqa: PLC0415 - imports torch

        def show(size: int, fits: bool) -> None:  # noqa: FBT001 - of the callback
            _print(f"{size:>8} {'fits' if fits else 'is too large'}")

        largest = find_batch_size(
            load_config(options), start=options.start, maximum=options.max, report_trial=show
        )
        if not largest:
            _print("No batch fits. Less memory is needed with --amp, or activation_checkpointing.")
            return 1
        limit = ", limited by --max" if largest == options.max else ""
        _print(f"Largest that fits: {largest}{limit}.")
        return 0

    return run


def verify_resume(parser: ArgumentParser) -> Callable[[Namespace], int]:
    """Prove that resuming changes nothing.

    Train some steps, stop, resume, and compare with the same steps without a stop. Exit status 1 if
    anything differs. Without --work-dir nothing is left behind.
    """
    add_config_arguments(parser)
    parser.add_argument(
        "--at-step",
        type=int,
        metavar="N",
        help="stop after this step (default: after at most five, in the middle of an epoch)",
    )

    def run(options: Namespace) -> int:
        from mm_runner.tools import verify_resume  # noqa: PLC0415 - imports torch

        cfg, work_dir = load_config(options), options.work_dir
        report = verify_resume(cfg, at_step=options.at_step, work_dir=work_dir)
        _print(str(report))
        return 0 if report.equal else 1

    return run


def replay(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Run the step that crashed again.

    Resume from the newest checkpoint before a crash, and train up to the step that failed. This
    imports and runs what the bundle's configuration names.
    """
    add_launcher(parser)
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that the log named")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run a bundle that another user has written, or may have changed",
    )

    def run(options: Namespace) -> None:
        from mm_runner.tools import replay_crash  # noqa: PLC0415 - imports torch

        _print(replay_crash(options.bundle, launcher=options.launcher, trust=options.trust))

    return run


def plot(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Draw the curves of runs.

    Draw losses and metrics of one or more work directories on the same axes.
    """
    parser.add_argument("work_dirs", nargs="+", metavar="WORK_DIR")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="ends in .png or .svg (default: curves.png in the first WORK_DIR)",
    )
    parser.add_argument(
        "--keys", nargs="+", metavar="NAME", help="what to draw, such as loss lr accuracy"
    )

    def run(options: Namespace) -> None:
        from mm_runner.tools import plot_runs  # noqa: PLC0415

        out = options.out or Path(options.work_dirs[0], "curves.png")
        picture = plot_runs(options.work_dirs, out, keys=options.keys)
        _print(str(picture))

    return run


def convert(parser: ArgumentParser) -> Callable[[Namespace], None]:
    """Convert a checkpoint of MMEngine.

    Read a checkpoint of MMEngine, without running code from it, and write it as ours.
    """
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")

    def run(options: Namespace) -> None:
        from mm_runner.tools import convert_mmengine_checkpoint  # noqa: PLC0415

        done = convert_mmengine_checkpoint(options.source, options.target)
        position = f"epoch {done.epoch}, step {done.iter}; " if done.epoch is not None else ""
        _print(f"{done.path}: {position}has {', '.join(done.keys)}")
        for name, reason in done.left_out.items():
            _print(f"left out: {name} ({reason})")

    return run


def _add_number(parser: ArgumentParser, name: str, default: float, text: str) -> None:
    parser.add_argument(
        name, type=type(default), default=default, metavar="N", help=f"{text} (%(default)s)"
    )


def _print(line: str) -> None:
    mm_dist = sys.modules.get("mm_dist")  # plot needs neither it nor torch
    if mm_dist is None or mm_dist.is_main_process():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
