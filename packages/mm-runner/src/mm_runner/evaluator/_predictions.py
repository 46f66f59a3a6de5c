"""The predictions for a whole dataset, and the file that they are kept in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.errors import CheckpointError, PredictionsError

from ._layout import select, size_of

if TYPE_CHECKING:
    import os

__all__ = ["PREDICTION_SUFFIXES", "Predictions", "load_predictions", "save_predictions"]

PREDICTION_SUFFIXES = (".pkl", ".pickle", ".pth", ".pt")
_FORMAT_VERSION = 1


class Predictions(Sequence[Any]):
    """What a model predicted for a dataset, in the dataset's order.

    As a sequence it has an entry for each sample.

    Args:
        whole: As ``forward(mode='predict')`` returns it for a batch: a list with an entry for each
            sample, or tensors with a row for each; also tuples and dicts of these.

    Attributes:
        whole: The same.

    Raises:
        ConfigError: If a part has no entry for each sample, or they have different numbers.

    Example:
        >>> import torch
        >>> predictions = Predictions((torch.eye(2), ["a", "b"]))
        >>> len(predictions), predictions[1]
        (2, (tensor([0., 1.]), 'b'))
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self._size = size_of(whole)

    def __len__(self) -> int:
        return self._size

    @override
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Predictions(self.select(range(len(self))[index]))
        position = range(len(self))[index]
        return _first(self.select([position]))

    @override
    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def select(self, indices: Sequence[int]) -> Any:
        """Return the predictions for some samples as a step would: in the form of ``whole``."""
        return select(self.whole, indices)


def save_predictions(predictions: Predictions, path: Path) -> None:
    """Write a file that :func:`load_predictions` reads; it is there whole or not at all.

    Raises:
        PredictionsError: If it cannot be written.
    """
    content = {
        "format_version": _FORMAT_VERSION,
        "num_samples": len(predictions),
        "results": predictions.whole,
    }
    try:
        save_checkpoint_file(content, path)
    except CheckpointError as error:
        raise PredictionsError(
            f"The predictions could not be written to {path}: {error.__cause__ or error}. Free "
            "space, or give a path that can be written."
        ) from error


def load_predictions(path: str | os.PathLike[str]) -> Predictions:
    """Read what :class:`DumpResults` has written; no code in the file is run.

    Raises:
        PredictionsError: If there is no such file, or it is damaged or something else.

    Example:
        >>> Evaluator(Accuracy()).offline_evaluate(load_predictions("out.pkl"))  # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_file():
        raise PredictionsError(f"The predictions {path} were asked for; there is no such file.")
    try:
        content = load_checkpoint_file(path)
    except CheckpointError as error:
        raise PredictionsError(
            f"{path} cannot be read as predictions that DumpResults has written, without running "
            f"code from it: {error} What MMEngine's DumpResults writes is a pickle: where it is to "
            "be trusted, give Evaluator.offline_evaluate the list that pickle.load returns."
        ) from error
    version = content.get("format_version")
    if version != _FORMAT_VERSION or "results" not in content:
        raise PredictionsError(
            f"{path} holds {', '.join(map(repr, content)) or 'nothing'}"
            f"{'' if version is None else f', format {version}'}; a file of DumpResults, of format "
            f"{_FORMAT_VERSION}, is needed."
        )
    return Predictions(content["results"])


def _first(part: Any) -> Any:
    if isinstance(part, tuple):
        return tuple(map(_first, part))
    if isinstance(part, dict):
        return {key: _first(one) for key, one in part.items()}
    return None if part is None else part[0]
