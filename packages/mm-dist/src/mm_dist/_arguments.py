"""The command-line arguments that launchers and users pass to a training script."""

from argparse import ArgumentParser

from mm_dist._launchers import launcher_names


def add_launcher_arguments(parser: ArgumentParser) -> None:
    """Add ``--launcher`` and both spellings of ``--local_rank``.

    ``python -m torch.distributed.launch`` passes ``--local_rank=N`` or ``--local-rank=N``,
    depending on torch's version; a script without both dies in argparse on the other one. The
    value is only accepted: the rank itself is read from the environment.

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
        type=int,
        default=0,
        help="passed by torch.distributed.launch; need not be given by hand",
    )
