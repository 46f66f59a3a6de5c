"""The arguments of ``mm-runner``, those of MMEngine's ``tools/train.py`` and ``tools/test.py``."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, _SubParsersAction
from functools import partial
from importlib.metadata import version
from typing import TypeAlias

from mm_dist import add_launcher_arguments
from mm_runner.config import DictAction

from ._finder_parser import add_finders

__all__ = ["build_parser"]

_Commands: TypeAlias = "_SubParsersAction[ArgumentParser]"

_EPILOG = (
    "Exit status: 0 success; 1 failure; 2 wrong usage; 75 preempted, saved, to be started again "
    "with --resume; 130 Ctrl-C. A configuration is YAML, JSON, or Python, which is executed: use "
    "only files that you trust. Modules are also imported from its folder and from the current one."
)


def build_parser() -> ArgumentParser:
    """Return the parser of all commands."""
    parser = ArgumentParser(
        prog="mm-runner",
        description="Train, test and examine models from their configuration.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"mm-runner {version('mm-runner')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    launched = _launcher_arguments()
    _add_train(commands, launched)
    _add_test(commands, launched)
    _add_check(commands)
    _add_plot(commands)
    _add_verify_resume(commands, launched)
    _add_convert(commands)
    _add_replay(commands, launched)
    add_finders(partial(_add, commands), _add_config_alone, _add_switches, launched=launched)
    return parser


def _launcher_arguments() -> ArgumentParser:
    parser = ArgumentParser(add_help=False)
    add_launcher_arguments(parser)
    parser.set_defaults(launcher=None)  # the configuration's, then
    return parser


def _add(
    commands: _Commands, name: str, help_text: str, description: str, *parents: ArgumentParser
) -> ArgumentParser:
    parser = commands.add_parser(
        name,
        parents=parents,
        help=help_text,
        description=description,
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--traceback", action="store_true", help="show the traceback of every error"
    )
    return parser


def _add_config(parser: ArgumentParser) -> None:
    _add_config_alone(parser)
    parser.add_argument(
        "--work-dir",
        "--work_dir",
        metavar="DIR",
        help="where checkpoints and logs go (default: as configured, else work_dirs/<its name>)",
    )


def _add_config_alone(parser: ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="a .yaml, .json or .py file")
    parser.add_argument(
        "--cfg-options",
        "--cfg_options",
        nargs="+",
        action=DictAction,
        metavar="PATH=VALUE",
        help="change single values: optim_wrapper.optimizer.lr=0.1 custom_hooks.0.interval=5",
    )


def _add_switches(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--amp",
        nargs="?",
        const="default",
        choices=["default", "float16", "bfloat16", "auto"],
        metavar="DTYPE",
        help="mixed precision: float16, bfloat16, auto, or the device's default",
    )
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument(
        "--auto-scale-lr",
        "--auto_scale_lr",
        action="store_true",
        help="scale the learning rate by the batch; needs auto_scale_lr.base_batch_size",
    )


def _add_train(commands: _Commands, launched: ArgumentParser) -> None:
    parser = _add(
        commands, "train", "train a model", "Train the model of a configuration.", launched
    )
    _add_config(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--resume",
        nargs="?",
        const="auto",
        metavar="CHECKPOINT",
        help="go on from a checkpoint; without a value, or with auto, from the newest in work_dir",
    )
    start.add_argument(
        "--overwrite",
        action="store_true",
        help="train from the start, and delete the checkpoints of an earlier run in work_dir",
    )
    parser.add_argument(
        "--no-resume-data",
        "--no_resume_data",
        action="store_true",
        help="begin the data anew when going on: for a dataset that is another one by now",
    )
    parser.add_argument(
        "--fast-dev-run",
        "--fast_dev_run",
        nargs="?",
        const=1,
        type=_number_of_batches,
        metavar="N",
        help="train, validate and test N batches each (default: 1) to see that all of it works, "
        "and keep nothing: no checkpoints, no resuming, a temporary work directory",
    )
    _add_switches(parser)


def _number_of_batches(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"a positive number is needed, got {text!r}; CONFIG stands first")
    return int(text)


def _add_test(commands: _Commands, launched: ArgumentParser) -> None:
    parser = _add(commands, "test", "test a model", "Test a checkpoint on the test data.", launched)
    _add_config(parser)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="where the weights are")
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the predictions there if it ends in .pkl, .pickle, .pth or .pt (see "
        "DumpResults), else the metrics, as JSON",
    )
    parser.add_argument(
        "--tta",
        action="store_true",
        help="predict from several views of each sample: needs tta_model, and perhaps tta_pipeline",
    )


def _add_check(commands: _Commands) -> None:
    parser = _add(
        commands,
        "check",
        "show what would be trained",
        "Build everything without data on the meta device, start no process group, and print the "
        "plan: model, parameters, schedule, batch, memory, what is accelerated. Exit status 1 if "
        "something is wrong.",
    )
    _add_config(parser)
    _add_switches(parser)
    parser.add_argument(
        "--world-size",
        "--world_size",
        type=int,
        metavar="N",
        help="processes to plan for (default: those of the launcher, else 1)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_plot(commands: _Commands) -> None:
    parser = _add(
        commands,
        "plot",
        "draw the curves of runs",
        "Draw losses and metrics of one or more work directories on the same axes.",
    )
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
        "--smooth", type=int, default=1, metavar="N", help="average over N records (%(default)s)"
    )


def _add_verify_resume(commands: _Commands, launched: ArgumentParser) -> None:
    parser = _add(
        commands,
        "verify-resume",
        "prove that resuming changes nothing",
        "Train some steps, stop, resume, and compare with the same steps without a stop. Exit "
        "status 1 if anything differs. Without --work-dir nothing is left behind.",
        launched,
    )
    _add_config(parser)
    _add_switches(parser)
    parser.add_argument(
        "--at-step",
        "--at_step",
        type=int,
        metavar="N",
        help="stop after this step (default: after at most five, in the middle of an epoch)",
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps to take in all (default: about five more)"
    )


def _add_convert(commands: _Commands) -> None:
    parser = _add(
        commands,
        "convert",
        "convert a checkpoint of MMEngine",
        "Read a checkpoint of MMEngine, without running code from it, and write it as ours.",
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("target", metavar="TARGET")


def _add_replay(commands: _Commands, launched: ArgumentParser) -> None:
    parser = _add(
        commands,
        "replay",
        "run the step that crashed again",
        "Go back to the newest checkpoint before a crash, and train up to the step that failed. "
        "This imports and runs what the bundle's configuration names.",
        launched,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="the folder that the crash message named")
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run what a bundle names that another user has written, or may have changed",
    )
