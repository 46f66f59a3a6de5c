"""The subcommands of :mod:`mm_runner.tools`: arguments and output."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mm_runner.errors import ConfigError

from ._configuration import add_config_arguments, add_launcher, load_config, locating
from ._train_and_test import writable

if TYPE_CHECKING:
    from mm_runner.tools import BatchSizeReport, BatchTrial, LearningRateReport

__all__ = ["Check", "Convert", "FindBatchSize", "FindLR", "Plot", "Replay", "VerifyResume"]

_PICTURES = (".png", ".svg")
_MOST_ROWS = 12
_MIB = 2**20


class Check:
    """``mm-runner check``."""

    help = "show what would be trained"
    description = (
        "Build everything without data on the meta device, start no process group, and print the "
        "plan: model, parameters, schedule, batch, memory, acceleration. Exit status 1 if "
        "something is wrong."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        add_config_arguments(parser, launcher=False)
        parser.add_argument(
            "--world-size",
            type=int,
            default=1,
            metavar="N",
            help="processes to plan for (%(default)s)",
        )

    def run(self, options: Namespace) -> int:
        """Print the plan; return the exit status."""
        from mm_runner.tools import make_plan  # noqa: PLC0415 - imports torch

        cfg = load_config(options)
        with locating(cfg):
            plan = make_plan(cfg, world_size=options.world_size)
        _print([plan.rstrip("\n")])
        return 0


class FindLR:
    """``mm-runner find-lr``."""

    help = "find a learning rate"
    description = (
        "Train with a learning rate that grows from step to step until the loss grows, and suggest "
        "the one where it falls fastest. Nothing is left behind, and the configuration is not "
        "changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        add_config_arguments(parser, work_dir=False)
        parser.add_argument(
            "--min-lr", type=float, default=1e-7, metavar="LR", help="first rate (1e-7)"
        )
        parser.add_argument(
            "--max-lr", type=float, default=10.0, metavar="LR", help="last rate (10)"
        )
        parser.add_argument(
            "--steps", type=int, default=100, metavar="N", help="optimizer steps (%(default)s)"
        )
        parser.add_argument(
            "--out", metavar="FILE", help="write the losses there: .png or .svg, or .json"
        )

    def run(self, options: Namespace) -> int:
        """Print the losses and a suggestion; return the exit status."""
        import mm_dist  # noqa: PLC0415 - imports torch, as do the next
        from mm_runner.tools import find_learning_rate, plot_rates  # noqa: PLC0415
        from mm_runner.tools._plot import new_figure  # noqa: PLC0415

        cfg = load_config(options)
        out = None if options.out is None else writable(Path(options.out))
        if out is not None and out.suffix.lower() not in (*_PICTURES, ".json"):
            raise ConfigError(f"--out: {out} was given; it has to end in .png, .svg or .json.")
        if out is not None and out.suffix.lower() in _PICTURES:
            new_figure(1, 1)  # fails now, not after the test, without matplotlib
        with locating(cfg):
            report = find_learning_rate(
                cfg, min_lr=options.min_lr, max_lr=options.max_lr, steps=options.steps
            )
        if not mm_dist.is_main_process():
            return 0
        _print(_rate_lines(report))
        if out is not None:
            if out.suffix.lower() in _PICTURES:
                plot_rates(report.points, report.suggestion, out)
            else:
                content = {**report._asdict(), "points": [one._asdict() for one in report.points]}
                out.write_text(f"{json.dumps(content, indent=2)}\n", encoding="utf-8")
            _print([str(out)])
        return 0


def _rate_lines(report: LearningRateReport) -> Iterator[str]:
    points = report.points
    yield f"{'lr':>10}{'loss':>12}{'smoothed':>12}"
    for point in points[:: -(-len(points) // _MOST_ROWS) or 1]:
        yield f"{point.lr:>10.2e}{point.loss:>12.4g}{point.smoothed:>12.4g}"
    if report.diverged:
        end = f"{points[-1].lr:.2e}" if points else "the first rate"
        yield f"The loss diverged after {len(points)} steps, at {end}."
    if report.suggestion is None:
        yield "No suggestion: the loss falls nowhere. Give other rates, or more --steps."
    else:
        rate = f"{report.suggestion:.2g}"
        yield f"Suggested: optim_wrapper.optimizer.lr={rate}, where the loss falls fastest."
    yield from report.notes


class FindBatchSize:
    """``mm-runner find-batch-size``."""

    help = "find the largest batch that fits"
    description = (
        "Take training steps with larger and larger batches in one process, until the memory is "
        "full, and print which batch is large enough to be as fast as any. On the CPU the system "
        "may end a process that asks for too much: give --max there. Nothing is left behind, and "
        "the configuration is not changed."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        add_config_arguments(parser, work_dir=False, launcher=False)
        parser.add_argument(
            "--start", type=int, default=2, metavar="N", help="first batch (%(default)s)"
        )
        parser.add_argument(
            "--max", type=int, default=1024, metavar="N", help="largest batch (%(default)s)"
        )
        parser.add_argument(
            "--steps",
            type=int,
            default=5,
            metavar="N",
            help="optimizer steps with each; all but the first are timed (%(default)s)",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, options: Namespace) -> int:
        """Print which batches fit, and how fast they are; return the exit status."""
        from mm_runner.tools import find_batch_size  # noqa: PLC0415 - imports torch

        cfg = load_config(options)
        if not options.json:
            _print([f"{'batch':>8}{'samples/s':>12}{'memory':>14}"])
        with locating(cfg):
            report = find_batch_size(
                cfg,
                start=options.start,
                maximum=options.max,
                steps=options.steps,
                report_trial=lambda trial: None if options.json else _print([_row(trial)]),
            )
        if options.json:
            content = {**report._asdict(), "trials": [one._asdict() for one in report.trials]}
            _print([json.dumps(content, indent=2)])
        else:
            _print(_batch_lines(report))
        return 0 if report.largest else 1


def _row(trial: BatchTrial) -> str:
    if trial.samples_per_s is None:
        return f"{trial.size:>8}{'-':>12}{'too large':>14}"
    memory = "-" if trial.peak_bytes is None else f"{trial.peak_bytes / _MIB:,.0f} MiB"
    return f"{trial.size:>8}{trial.samples_per_s:>12,.1f}{memory:>14}"


def _batch_lines(report: BatchSizeReport) -> Iterator[str]:
    if not report.largest:
        yield "No batch fits. Less memory is needed with --amp, or activation_checkpointing."
        return
    yield f"Largest that fits: {report.largest}, limited by {report.limit}."
    yield f"Largest power of two: {report.power_of_two}."
    yield f"Large enough: {report.fastest}, the smallest within 5 % of the best throughput."


class VerifyResume:
    """``mm-runner verify-resume``."""

    help = "prove that resuming changes nothing"
    description = (
        "Train some steps, stop, resume, and compare with the same steps without a stop. Exit "
        "status 1 if anything differs. Without --work-dir nothing is left behind."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        add_config_arguments(parser)
        parser.add_argument(
            "--at-step",
            type=int,
            metavar="N",
            help="stop after this step (default: after at most five, in the middle of an epoch)",
        )
        parser.add_argument(
            "--steps", type=int, metavar="N", help="steps to take in all (default: about five more)"
        )

    def run(self, options: Namespace) -> int:
        """Print the comparison; return the exit status."""
        import mm_dist  # noqa: PLC0415 - imports torch, as does the next
        from mm_runner.tools import verify_resume  # noqa: PLC0415

        cfg = load_config(options)
        with locating(cfg):
            report = verify_resume(
                cfg, at_step=options.at_step, steps=options.steps, work_dir=options.work_dir
            )
        if mm_dist.is_main_process():
            _print([str(report)])
        return 0 if report.equal else 1


class Replay:
    """``mm-runner replay``."""

    help = "run the step that crashed again"
    description = (
        "Resume from the newest checkpoint before a crash, and train up to the step that failed. "
        "This imports and runs what the bundle's configuration names."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        add_launcher(parser)
        parser.add_argument("bundle", metavar="BUNDLE", help="the folder that the log named")
        parser.add_argument(
            "--trust",
            action="store_true",
            help="run a bundle that another user has written, or may have changed",
        )

    def run(self, options: Namespace) -> int:
        """Run the step that crashed again; return the exit status."""
        import mm_dist  # noqa: PLC0415 - imports torch, as does the next
        from mm_runner.tools import replay_crash  # noqa: PLC0415

        text = replay_crash(options.bundle, launcher=options.launcher, trust=options.trust)
        if mm_dist.is_main_process():
            _print([text])
        return 0


class Plot:
    """``mm-runner plot``."""

    help = "draw the curves of runs"
    description = "Draw losses and metrics of one or more work directories on the same axes."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("work_dirs", nargs="+", metavar="WORK_DIR")
        parser.add_argument(
            "--out",
            metavar="FILE",
            help="ends in .png or .svg (default: curves.png in the first WORK_DIR)",
        )
        parser.add_argument(
            "--keys", nargs="+", metavar="NAME", help="what to draw, such as loss lr accuracy"
        )
        parser.add_argument(
            "--smooth",
            type=int,
            default=1,
            metavar="N",
            help="average over N records (%(default)s)",
        )

    def run(self, options: Namespace) -> int:
        """Draw the curves, and print the path of the picture; return the exit status."""
        from mm_runner.tools import plot_runs  # noqa: PLC0415

        out = Path(options.work_dirs[0], "curves.png") if options.out is None else options.out
        picture = plot_runs(options.work_dirs, out, keys=options.keys, window_size=options.smooth)
        _print([str(picture)])
        return 0


class Convert:
    """``mm-runner convert``."""

    help = "convert a checkpoint of MMEngine"
    description = (
        "Read a checkpoint of MMEngine, without running code from it, and write it as ours."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the arguments."""
        parser.add_argument("source", metavar="SOURCE")
        parser.add_argument("target", metavar="TARGET")

    def run(self, options: Namespace) -> int:
        """Convert, and print the entries of the new file; return the exit status."""
        from mm_runner.tools import convert_mmengine_checkpoint  # noqa: PLC0415

        done = convert_mmengine_checkpoint(options.source, options.target)
        position = f"epoch {done.epoch}, step {done.iter}; " if done.epoch is not None else ""
        _print([f"{done.path}: {position}has {', '.join(done.keys)}"])
        _print(f"left out: {name} ({reason})" for name, reason in done.left_out.items())
        return 0


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
