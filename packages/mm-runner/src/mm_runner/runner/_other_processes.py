"""Going on with another number of processes than the one that wrote the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError
from mm_runner.optim import named_wrappers

from ._summary import batch_of_process

if TYPE_CHECKING:
    from mm_runner.runner import Runner

__all__ = ["batch_of_run", "check_world_size", "describe_batches", "saved_world_size"]

_MOST_RATES = 5


def batch_of_run(runner: Runner) -> dict[str, Any]:
    """Return what a step of the run takes, as a checkpoint keeps it.

    Returns:
        ``per_process``, the samples of a batch, ``None`` if unknown; and ``accumulated``, batches
        by name of the optimizer wrapper, which is ``""`` if there is but one.
    """
    loader = getattr(vars(runner).get("train_loop"), "dataloader", None)
    wrappers = named_wrappers(runner.optim_wrapper) if runner.optim_wrapper is not None else {}
    return {
        "per_process": batch_of_process(loader),
        "accumulated": {name: _accumulated(one) for name, one in wrappers.items()},
    }


def saved_world_size(checkpoint: Mapping[str, Any]) -> int:
    """Return how many processes wrote a checkpoint, 0 if it does not say."""
    number = int(checkpoint.get("meta", {}).get("world_size", 0))
    return number or len(checkpoint.get("rng", ()))


def check_world_size(runner: Runner, checkpoint: Mapping[str, Any]) -> None:
    """Check that a run may go on from ``checkpoint`` with as many processes as it has.

    Raises:
        ConfigError: If it has another number, and ``on_world_size_change`` is ``"error"``.
    """
    saved = saved_world_size(checkpoint)
    is_refused = runner.cfg.get("on_world_size_change") == "error"
    if is_refused and saved not in (0, runner.world_size):
        raise ConfigError(
            f"on_world_size_change: 'error' was given; the checkpoint was written by {saved} "
            f"process(es), and this run has {runner.world_size}. Start {saved}, or set 'keep', "
            "which goes on with the samples that are left."
        )


def describe_batches(runner: Runner, checkpoint: Mapping[str, Any]) -> str:
    """Say what a step took before and takes now, the learning rates, and how to keep the batch."""
    now = batch_of_run(runner)
    saved = checkpoint.get("meta", {}).get("batch")
    old, new = saved_world_size(checkpoint), runner.world_size
    if now["per_process"] is None:
        return (
            f"A step takes {new / old:g} times as many samples as before, if the loader's batches "
            "are of one size. Schedules and learning rates are left as they are."
        )
    lines = _batches(runner, saved or now, old, is_known=bool(saved), now=now)
    return " ".join([*lines, "Schedules and learning rates are left as they are."])


def _batches(
    runner: Runner, saved: Mapping[str, Any], old: int, *, is_known: bool, now: Mapping[str, Any]
) -> Iterator[str]:
    per_process, new = now["per_process"], runner.world_size
    before_each = saved.get("per_process") or per_process
    for name, wrapper in named_wrappers(runner.optim_wrapper).items():
        accumulated = now["accumulated"][name]
        accumulated_before = saved.get("accumulated", {}).get(name, accumulated)
        before, after = before_each * old * accumulated_before, per_process * new * accumulated
        proviso = "" if is_known else " if nothing else has changed"
        yield (
            f"{f'Of {name}, a' if name else 'A'} step took {before} samples{proviso} "
            f"({before_each} of a process x {old} x {accumulated_before} accumulated), and takes "
            f"{after} ({per_process} x {new} x {accumulated}), at {_rates(wrapper)}."
        )
        if before != after:
            yield _how_to_keep(before, name, per_process, new, accumulated)


def _how_to_keep(batch: int, name: str, per_process: int, world_size: int, accumulated: int) -> str:
    prefix = f"optim_wrapper.{name}" if name else "optim_wrapper"
    ways = [
        f"{key}={batch // others}"
        for key, others in (
            (f"{prefix}.accumulative_counts", per_process * world_size),
            ("train_dataloader.batch_size", world_size * accumulated),
        )
        if batch % others == 0
    ]
    if ways:
        return f"{' or '.join(ways)} keeps {batch}."
    if batch % world_size:
        return (
            f"With {world_size} processes no batch_size and accumulative_counts give {batch}: "
            "start a number of processes that divides it, or scale the learning rate."
        )
    return (
        f"Neither accumulative_counts nor batch_size alone gives {batch}: choose them so that "
        f"batch_size x accumulative_counts is {batch // world_size}, or scale the learning rate."
    )


def _rates(wrapper: Any) -> str:
    rates = list(dict.fromkeys(float(group["lr"]) for group in wrapper.param_groups))
    shown = ", ".join(f"{rate:g}" for rate in rates[:_MOST_RATES])
    more = ", ..." if len(rates) > _MOST_RATES else ""
    return f"{'a learning rate' if len(rates) == 1 else 'learning rates'} of {shown}{more}"


def _accumulated(wrapper: Any) -> int:
    return int(getattr(wrapper, "accumulative_counts", 1))
