"""Tells a model that fails on lists which ``collate_fn`` makes tensors of them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mm_runner._error_text import text_of
from mm_runner.crash import last_batch
from mm_runner.data import pseudo_collate
from mm_runner.errors import ConfigError, MMRunnerError
from mm_runner.model import unwrap_model

if TYPE_CHECKING:
    from types import TracebackType

    from mm_runner.runner import Runner

__all__ = ["explaining_lists"]


@contextmanager
def explaining_lists(runner: Runner) -> Iterator[None]:
    """Turn the error of a model that cannot take lists, within the block, into what to set.

    Samples are not stacked by default, as with MMEngine, whose models take lists; other modules
    fail in a layer of theirs then, with an error that knows nothing of the loader. They do so on
    the first batch: what fails later can take lists. Steps pay nothing for it.

    Args:
        runner: Whose loop runs within the block.

    Raises:
        ConfigError: In place of such an error.
    """
    num_steps = runner.iter
    try:
        yield
    except (MMRunnerError, IndexError):
        raise
    except Exception as error:
        try:
            explanation = _explain(runner, error, num_steps)
        except Exception:  # noqa: BLE001 - objects of the user's are looked at: what failed counts
            explanation = None
        if explanation is None:
            raise
        raise ConfigError(explanation) from error


def _explain(runner: Runner, error: Exception, num_steps: int) -> str | None:
    """Return what to set, ``None`` if ``error`` is not that of a model that cannot take lists."""
    phase = _phase_in_model(runner, error.__traceback__, num_steps)
    found = _first_list(last_batch(error.__traceback__), "")
    if phase is None or found is None or not re.search(r"\blist\b", text_of(error)):
        return None
    where, values = found
    if not _failed_on(values, error.__traceback__):
        return None
    model = type(unwrap_model(runner.model)).__name__
    said = text_of(error).strip().splitlines()[0]
    return (
        f"{phase}_dataloader.collate_fn: {model} failed on a batch in which {where} is a list "
        f"of {len(values)} {type(values[0]).__name__}s, with {type(error).__name__}: {said}. "
        "The batch was made by pseudo_collate, the default, which stacks nothing. Set "
        "collate_fn='default_collate' for tensors with a row per sample; or let the model, or "
        "its data_preprocessor, take lists."
    )


def _phase_in_model(runner: Runner, trace: TracebackType | None, num_steps: int) -> str | None:
    """Return whose first batch, made by ``pseudo_collate``, a model failed on, else ``None``.

    Args:
        runner: The run.
        trace: Of the error.
        num_steps: Training steps that were done before.
    """
    phases = {name: runner.built_loop(name) for name in ("train", "val", "test")}
    found, is_in_model, is_first = None, False, True
    for frame, _ in traceback.walk_tb(trace):
        caller = frame.f_locals.get("self")
        is_in_model = is_in_model or isinstance(caller, nn.Module)
        phase = next((name for name, loop in phases.items() if loop is caller is not None), None)
        if phase is not None:
            found = phase
            # What loops of the package call the number of a batch.
            index = frame.f_locals.get("index", frame.f_locals.get("idx", 0))
            is_first = runner.iter == num_steps if phase == "train" else index == 0
    loader = getattr(phases.get(found or ""), "dataloader", None)
    made_so = getattr(loader, "collate_fn", None) is pseudo_collate
    return found if made_so and is_in_model and is_first else None


def _failed_on(values: list[Any], trace: TracebackType | None) -> bool:
    """Tell whether where an error was raised there is such a list, and not one of the model's own.

    A data_preprocessor may have moved what is in it to a device, so it is another one.
    """
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    return any(
        isinstance(one, list) and len(one) == len(values) and _form(one[0]) == _form(values[0])
        for one in frames[-1].f_locals.values()
    )


def _form(value: Any) -> tuple[Any, ...]:
    return type(value), getattr(value, "shape", None), getattr(value, "dtype", None)


def _first_list(batch: Any, where: str) -> tuple[str, list[Any]] | None:
    """Return the place of the first list of tensors or numbers in a batch, and the list."""
    if isinstance(batch, list) and batch and isinstance(batch[0], (Tensor, int, float)):
        return where or "everything", batch
    parts: list[tuple[str, Any]] = []
    if isinstance(batch, Mapping):
        parts = [(f"{where}[{key!r}]" if where else repr(key), one) for key, one in batch.items()]
    elif isinstance(batch, (list, tuple)):
        name = f"{where}[{{}}]" if where else "part {}"
        parts = [(name.format(index), one) for index, one in enumerate(batch)]
    found = (_first_list(one, place) for place, one in parts)
    return next((one for one in found if one is not None), None)
