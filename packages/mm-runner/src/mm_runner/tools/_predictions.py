"""Predictions as JSON lines, a table, or arrays."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mm_runner.checkpoint._writing import write_atomically
from mm_runner.errors import CheckpointError, ConfigError, PredictionsError
from mm_runner.evaluator import PREDICTION_SUFFIXES, join, on_host, save_predictions, split
from mm_runner.evaluator._predictions import size_of

_PAIR = ("prediction", "target")


def write_predictions(predictions: Any, path: str | Path) -> None:
    """Write predictions to a file, which appears when it is whole.

    A tensor or list alone is called ``prediction``; the parts of a pair are ``prediction`` and
    ``target``, those of another tuple ``0``, ``1`` and so on.

    Args:
        predictions: As :meth:`mm_runner.Runner.predict` returns them.
        path: Its ending chooses the format: ``.jsonl``, an object for each sample; ``.csv``, a row
            for each sample and a column for each number; ``.npz``, an array for each part;
            ``.pt``, ``.pth``, ``.pkl``, as :func:`mm_runner.evaluator.load_predictions` reads it.

    Raises:
        ConfigError: If the ending is another one, or the predictions do not fit the format; those
            are then in a file beside it, with ``.pt`` behind its name.
        PredictionsError: If the file cannot be written.
    """
    path = Path(path)
    check_predictions_format(path)
    predictions, write = on_host(predictions), _FORMATS.get(path.suffix.lower())
    size_of(predictions)  # raises where the parts do not fit together
    if write is None:
        save_predictions(predictions, path)
        return
    try:
        write_atomically(path, lambda file: write(_named(predictions), file))
    except ConfigError as error:
        kept = path.with_name(f"{path.name}.pt")
        save_predictions(predictions, kept)
        raise ConfigError(f"{path}: {error} The predictions are in {kept}.") from error
    except CheckpointError as error:
        raise PredictionsError(f"{path} could not be written: {error.__cause__}.") from error


def check_predictions_format(path: Path) -> None:
    """Raise a ConfigError if the ending of ``path`` names no format, or one without its library."""
    suffix, known = path.suffix.lower(), [*_FORMATS, *PREDICTION_SUFFIXES]
    if suffix not in known:
        raise ConfigError(f"{path}: a path that ends in {', '.join(known)} is needed.")
    if suffix == ".npz" and find_spec("numpy") is None:
        raise ConfigError(f"{path}: {suffix} needs NumPy: pip install numpy.")


def _named(predictions: Any) -> dict[str, Any]:
    """Return the parts of predictions by name."""
    found = _regrouped(predictions)
    if isinstance(found, tuple):
        names = _PAIR if len(found) == len(_PAIR) else map(str, range(len(found)))
        found = dict(zip(names, found, strict=True))
    return found if isinstance(found, dict) else {"prediction": found}


def _regrouped(samples: Any) -> Any:
    """Return dicts with the same keys as a dict of lists, and tensors of one shape as rows."""
    if not isinstance(samples, list):
        return samples
    if all(isinstance(one, dict) and one.keys() == samples[0].keys() for one in samples):
        return {key: [one[key] for one in samples] for key in samples[0]}
    return join(samples, "rows" if all(isinstance(one, Tensor) for one in samples) else "list")


def _write_lines(parts: dict[str, Any], file: Any) -> None:
    for sample in split(parts):
        only = sample.get("prediction") if len(sample) == 1 else None
        record = _as_json(only if isinstance(only, dict) else sample)
        file.write(f"{json.dumps(record, ensure_ascii=False)}\n".encode())


def _as_json(value: Any) -> Any:
    """Return what JSON can hold: tensors as lists, and ``None`` for NaN and infinity."""
    value = value.tolist() if isinstance(value, Tensor) else value
    if isinstance(value, dict):
        return {str(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_table(parts: dict[str, Any], file: Any) -> None:
    columns: dict[str, list[Any]] = {}
    for name, part in _flat(parts):
        if isinstance(part, Tensor):
            indices = product(*map(range, part.shape[1:]))
            names = ["_".join([name, *map(str, index)]) for index in indices]
            columns.update(zip(names, part.reshape(len(part), -1).T.tolist(), strict=True))
        else:
            columns[name] = part
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    file.write(text.getvalue().encode())


def _write_arrays(parts: dict[str, Any], file: Any) -> None:
    import numpy as np  # noqa: PLC0415 - no requirement of ours

    # NumPy has no bfloat16.
    arrays = {
        name: part.float() if getattr(part, "dtype", None) is torch.bfloat16 else part
        for name, part in _flat(parts)
    }
    if "file" in arrays:  # an argument of savez
        raise ConfigError(".npz can hold no part called 'file'. Give .jsonl or .pt instead.")
    np.savez(file, **arrays)


def _flat(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield tensors with a row for each sample, and lists of numbers or texts, by their names.

    Raises:
        ConfigError: If a part is anything else.
    """
    part = _regrouped(part)
    if isinstance(part, (Mapping, tuple)):
        for key, one in part.items() if isinstance(part, Mapping) else enumerate(part):
            yield from _flat(one, f"{name}.{key}" if name else str(key))
    elif isinstance(part, Tensor) or all(isinstance(x, (int, float, str)) for x in part or ()):
        yield from [] if part is None else [(name, part)]
    else:
        raise ConfigError(
            f"{name}: samples differ in form, or are no numbers, texts or tensors of one shape; "
            "they do not fit a table or an array. Give .jsonl or .pt instead."
        )


_FORMATS: dict[str, Callable[[dict[str, Any], Any], None]] = {
    ".jsonl": _write_lines,
    ".csv": _write_table,
    ".npz": _write_arrays,
}
