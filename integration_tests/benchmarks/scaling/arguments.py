"""Options of ``scale.py``."""

import argparse
from dataclasses import fields, replace

from scaling.model import BACKENDS, Constants, Job, default_constants

_LEAST = 1e-30
_NUMBERS = {
    "parameters": "of the model",
    "bytes_per_gradient": "in an all-reduce: 4 for float32, 2 for bfloat16",
    "bytes_per_parameter": "in a checkpoint: 12 for float32 and the two moments of Adam",
    "object_bytes": "that each rank gives to all_gather_object",
}


def add_scale_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options but ``--json``: one for each number of the job, and for each constant."""
    parser.description = (
        "Compute how long a start, an all-reduce and a checkpoint take as ranks are added, and "
        "what breaks first. Starts nothing. Times are in seconds, sizes in bytes."
    )
    job = Job()
    parser.add_argument(
        "--ranks", default="8:8192", metavar="FROM:TO", help="doubled from one to the other; or N,N"
    )
    parser.add_argument("--backend", choices=BACKENDS, default=job.backend)
    _add(parser, "ranks_per_node", int, "ranks per machine", job.ranks_per_node)
    for name, meaning in _NUMBERS.items():
        _add(parser, name, float, meaning, getattr(job, name))
    _add(parser, "timeout", float, "seconds of a collective (default: torch's)", None)
    parser.add_argument(
        "--local-environment",
        "--local_environment",
        action="store_true",
        help="Python and torch lie on each machine's own disk",
    )
    parser.add_argument(
        "--async-save",
        "--async_save",
        action="store_true",
        help="checkpoints are written while training goes on",
    )
    parser.add_argument(
        "--lazy-gloo",
        "--lazy_gloo",
        action="store_true",
        help="gloo connects two ranks when they first talk (TORCH_GLOO_LAZY_INIT=1)",
    )
    parser.add_argument(
        "--explain", action="store_true", help="also print formulas and constants, with sources"
    )
    group = parser.add_argument_group("constants (--explain says where each default is from)")
    for each in fields(Constants):
        unit = each.metadata["unit"]
        meaning = f"{each.metadata['meaning']}{f', in {unit}' if unit else ''}"
        _add(group, each.name, float, meaning, None)


def _add(
    parser: argparse._ActionsContainer, name: str, kind: type, meaning: str, default: object
) -> None:
    shown = "" if default is None else f" (default: {default:g})"
    parser.add_argument(
        *dict.fromkeys((_spell(name), f"--{name}")),
        dest=name,
        type=kind,
        default=default,
        metavar="N",
        help=f"{meaning}{shown}",
    )


def read_job(options: argparse.Namespace) -> Job:
    """Return what is trained.

    Raises:
        ValueError: If a number cannot be used.
    """
    for name in ("ranks_per_node", *_NUMBERS, "timeout"):
        _check_number(options, name)
    return Job(
        backend=options.backend,
        ranks_per_node=options.ranks_per_node,
        timeout=options.timeout,
        is_environment_shared=not options.local_environment,
        is_saving_behind=options.async_save,
        is_gloo_lazy=options.lazy_gloo,
        **{name: getattr(options, name) for name in _NUMBERS},
    )


def read_constants(options: argparse.Namespace) -> Constants:
    """Return the backend's defaults, with those replaced that were given.

    Raises:
        ValueError: If a number cannot be used.
    """
    names = [each.name for each in fields(Constants)]
    for name in names:
        _check_number(options, name)
    given = {name: getattr(options, name) for name in names}
    known = {name: value for name, value in given.items() if value is not None}
    return replace(default_constants(options.backend), **known)


def _check_number(options: argparse.Namespace, name: str) -> None:
    value = getattr(options, name)
    # Comparisons with nan are false.
    if value is not None and not 0 < value < float("inf"):
        raise ValueError(f"{_spell(name)}={value:g} must be a number above 0.")
    # Products of a few numbers, and their inverses, then stay what a float can hold.
    if value is not None and not _LEAST <= value <= 1 / _LEAST:
        raise ValueError(
            f"{_spell(name)}={value:g} is no number of this world; give one between {_LEAST:g} and "
            f"{1 / _LEAST:g}."
        )


def read_ranks(text: str) -> list[int]:
    """Return the numbers of ranks that ``FROM:TO`` or ``N,N,N`` means.

    Raises:
        ValueError: If it means none.

    Example:
        >>> read_ranks("8:64")
        [8, 16, 32, 64]
    """
    first, colon, last = text.partition(":")
    words = [first, last] if colon else text.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise ValueError(
            f"--ranks={text} is no number of ranks; write FROM:TO, as 8:8192, or N,N, as 8,64."
        )
    numbers = [int(word) for word in words]
    if not colon:
        return numbers
    low, high = numbers
    if low > high:
        raise ValueError(f"--ranks={text} begins above its end; write --ranks={high}:{low}.")
    doubled = [low << shift for shift in range((high // low).bit_length())]
    return doubled if doubled[-1] == high else [*doubled, high]


def _spell(name: str) -> str:
    return f"--{name.replace('_', '-')}"
