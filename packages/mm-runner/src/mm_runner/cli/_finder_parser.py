"""The arguments of the commands that find a learning rate or a batch size."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

__all__ = ["add_finders"]

_NOTHING_LEFT = "Nothing is left behind, and the configuration is not changed."


def add_finders(
    add: Callable[..., ArgumentParser],
    *add_common: Callable[[ArgumentParser], None],
    launched: ArgumentParser,
) -> None:
    """Add the commands.

    Args:
        add: Adds a command by its name, help and description, with arguments of other parsers.
        *add_common: Add the arguments that all have: the configuration, and what changes it.
        launched: The arguments of a command that may run in several processes.
    """
    learning_rate = add(
        "find-lr",
        "find a learning rate",
        "Train with a learning rate that grows from step to step until the loss grows, and suggest "
        f"the one where it falls fastest. {_NOTHING_LEFT}",
        launched,
    )
    batch_size = add(
        "find-batch-size",
        "find the largest batch that fits",
        "Take training steps with larger and larger batches in one process, until the memory is "
        "full, and tell which batch is large enough to be as fast as any. On the CPU the system "
        f"may end a process that asks for too much: give --max there. {_NOTHING_LEFT}",
    )
    for parser in (learning_rate, batch_size):
        parser.set_defaults(work_dir=None)  # they have one of their own
        for add_arguments in add_common:
            add_arguments(parser)
    _add_rates(learning_rate)
    _add_batches(batch_size)


def _add_rates(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--min-lr", "--min_lr", type=float, default=1e-7, metavar="LR", help="first rate (1e-7)"
    )
    parser.add_argument(
        "--max-lr", "--max_lr", type=float, default=10.0, metavar="LR", help="last rate (10)"
    )
    parser.add_argument(
        "--steps", type=int, default=100, metavar="N", help="steps of the optimizer (%(default)s)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write the losses there: .png or .svg, or .json"
    )


def _add_batches(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--start", type=int, default=2, metavar="N", help="first batch (%(default)s)"
    )
    parser.add_argument(
        "--max", type=int, default=1024, metavar="N", help="largest batch to try (%(default)s)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=5,
        metavar="N",
        help="steps of the optimizer with each; all but the first are timed (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
