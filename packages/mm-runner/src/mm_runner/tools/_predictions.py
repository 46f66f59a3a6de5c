"""Predictions as JSON lines, a table, or arrays."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from mm_runner.checkpoint._writing import write_atomically
from mm_runner.errors import CheckpointError, ConfigError, PredictionsError
from mm_runner.evaluator import PREDICTION_SUFFIXES, join, on_host, save_predictions, split
from mm_runner.evaluator._predictions import size_of
from mm_runner.hooks import Hook

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Names of what ``forward(mode="predict")`` returns, where it returns no names.
_PAIR = ("prediction", "target")


def write_predictions(predictions: Any, path: str | Path) -> None:
    """Write predictions to a file, which appears when it is whole.

    Of a tensor or list alone the name is ``prediction``; the parts of a pair are ``prediction``
    and ``target``, those of another tuple ``prediction_0`` and so on.

    Args:
        predictions: As :meth:`mm_runner.Runner.predict` returns them.
        path: Its ending chooses the format: ``.jsonl``, an object for each sample; ``.csv``, a row
            for each sample and a column for each number; ``.npz``, an array for each part;
            ``.npy``, a single array; ``.pt``, ``.pth``, ``.pkl``, as
            :func:`mm_runner.evaluator.load_predictions` reads it.

    Raises:
        ConfigError: If the ending is another one, or the predictions do not fit the format.
        PredictionsError: If the file cannot be written.

    Example:
        >>> write_predictions((torch.eye(2), torch.tensor([0, 1])), "out.csv")  # doctest: +SKIP
    """
    path = Path(path)
    check_predictions_format(path)
    predictions = on_host(predictions)
    size_of(predictions)  # raises where parts have different numbers of samples
    if path.suffix.lower() in PREDICTION_SUFFIXES:
        save_predictions(predictions, path)
        return
    write = _FORMATS[path.suffix.lower()]
    try:
        write_atomically(path, lambda file: write(predictions, file))
    except CheckpointError as error:
        raise PredictionsError(
            f"The predictions could not be written to {path}: {error.__cause__ or error}. Free "
            "space, or give a path that can be written."
        ) from error


def check_predictions_format(path: Path) -> None:
    """Raise a ConfigError if the ending of ``path`` names no format, or one without its library."""
    suffix, known = path.suffix.lower(), [*_FORMATS, *PREDICTION_SUFFIXES]
    if suffix not in known:
        raise ConfigError(f"{path}: a path that ends in {', '.join(known)} is needed.")
    if suffix in (".npz", ".npy"):
        try:
            import numpy  # noqa: F401, ICN001, PLC0415 - no requirement of ours
        except ImportError as error:
            raise ConfigError(f"{path}: {suffix} needs NumPy: pip install numpy.") from error


class FormatCheckHook(Hook):
    """Raise after the first batch if its predictions do not fit the format of ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def after_test_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        write = _FORMATS.get(self.path.suffix.lower())
        if batch_idx == 0 and write is not None:
            write(on_host(outputs), io.BytesIO())


def _write_lines(predictions: Any, file: Any) -> None:
    named = _named(predictions)
    for sample in split(named):
        only = sample.get("prediction")
        record = only if len(sample) == 1 and isinstance(only, dict) else sample
        file.write(f"{json.dumps(_as_json(record), ensure_ascii=False)}\n".encode())


def _write_table(predictions: Any, file: Any) -> None:
    columns: dict[str, list[Any]] = {}
    for name, part in _parts(_named(predictions)):
        if not isinstance(part, Tensor):
            columns[name] = part
            continue
        indices = product(*map(range, part.shape[1:]))
        names = ["_".join([name, *map(str, index)]) for index in indices]
        columns.update(zip(names, part.reshape(len(part), -1).T.tolist(), strict=True))
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    text.detach()


def _write_arrays(predictions: Any, file: Any) -> None:
    import numpy as np  # noqa: PLC0415 - as above

    np.savez(file, **{name: _array(part) for name, part in _parts(_named(predictions))})


def _write_array(predictions: Any, file: Any) -> None:
    import numpy as np  # noqa: PLC0415 - as above

    parts = dict(_parts(_named(predictions)))
    if len(parts) != 1:
        raise ConfigError(
            f".npy holds one array; the model predicts {', '.join(parts)}. Give .npz instead."
        )
    (part,) = parts.values()
    np.save(file, _array(part), allow_pickle=False)


_FORMATS: dict[str, Callable[[Any, Any], None]] = {
    ".jsonl": _write_lines,
    ".csv": _write_table,
    ".npz": _write_arrays,
    ".npy": _write_array,
}


def _named(predictions: Any) -> dict[str, Any]:
    if isinstance(predictions, list):
        predictions = _regrouped(predictions)
    if isinstance(predictions, Mapping):
        return dict(predictions)
    if not isinstance(predictions, tuple):
        return {"prediction": predictions}
    names = [f"prediction_{index}" for index in range(len(predictions))]
    return dict(zip(_PAIR if len(predictions) == 2 else names, predictions, strict=True))


def _parts(part: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield tensors with a row for each sample, and lists of numbers or texts, by their names.

    Raises:
        ConfigError: If a part is anything else.
    """
    if isinstance(part, list):
        part = _regrouped(part)
    elif isinstance(part, tuple):
        part = dict(enumerate(part))
    if isinstance(part, Mapping):
        for key, value in part.items():
            yield from _parts(value, f"{name}.{key}" if name else str(key))
    elif isinstance(part, Tensor) or all(isinstance(x, (int, float, str)) for x in part or ()):
        yield from [] if part is None else [(name, part)]
    else:
        raise ConfigError(
            f"{name}: samples differ in form, or are no numbers, texts or tensors of one shape; "
            "they do not fit a table or an array. Give .jsonl or .pt instead."
        )


def _regrouped(samples: list[Any]) -> Any:
    """Return dicts with the same keys as a dict of lists, and tensors of one shape as rows."""
    if all(isinstance(one, dict) and one.keys() == samples[0].keys() for one in samples):
        return {key: [one[key] for one in samples] for key in samples[0]}
    return join(samples, "rows" if all(isinstance(one, Tensor) for one in samples) else "list")


def _array(part: Any) -> Any:
    import numpy as np  # noqa: PLC0415 - as above

    if isinstance(part, Tensor):  # NumPy has no bfloat16
        return (part.float() if part.dtype is torch.bfloat16 else part).numpy()
    return np.asarray(part)


def _as_json(value: Any) -> Any:
    """Return what JSON can hold: tensors as lists, and ``None`` for NaN and infinity."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
