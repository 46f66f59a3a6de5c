"""The command-line arguments that launchers and users pass to a training script."""

import os
from argparse import ArgumentParser, ArgumentTypeError

from mm_dist._launchers import launcher_names


def add_launcher_arguments(parser: ArgumentParser) -> None:
    """Add ``--launcher`` and both spellings of ``--local_rank``.

    ``python -m torch.distributed.launch`` passes ``--local_rank=N`` or ``--local-rank=N``,
    depending on torch's version; a script without both dies in argparse on the other one. Where
    the environment has ``LOCAL_RANK``, that is the value, whatever is passed. The functions of
    this package read the environment alone.

    Args:
        parser: The script's parser; changed in place.

    Example:
        >>> parser = ArgumentParser()
        >>> add_launcher_arguments(parser)
        >>> parser.parse_args(["--local-rank=1"]).local_rank
        1
    """
    parser.add_argument(
        "--launcher",
        choices=launcher_names(),
        default="auto",
        help="what started the processes (default: found out from the environment)",
    )
    parser.add_argument(
        "--local_rank",
        "--local-rank",
        dest="local_rank",
        type=_choose_local_rank,
        default="0",
        metavar="N",
        help="passed by torch.distributed.launch; need not be given by hand",
    )


def _choose_local_rank(text: str) -> int:
    # argparse passes the default through here as well.
    chosen = os.environ.get("LOCAL_RANK") or text
    if not chosen.isdecimal():
        raise ArgumentTypeError(f"{chosen!r} is no whole number of at least 0")
    return int(chosen)
