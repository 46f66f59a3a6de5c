"""Accuracy of a classifier."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

from ._metric import BaseMetric

__all__ = ["Accuracy"]


class Accuracy(BaseMetric):
    """Share of samples whose label has the highest score.

    Takes what ``forward(mode='predict')`` returns as ``(scores, labels)``: ``scores`` of shape
    ``(batch, classes)``, of two classes at least, ``labels`` of shape ``(batch,)``. Reports
    ``accuracy``, from 0 to 1.

    Args:
        **kwargs: As in :class:`BaseMetric`.

    Raises:
        ConfigError: As it is evaluated, if predictions are anything else, or there are none.
    """

    reported_metrics = ("accuracy",)

    @override
    def process(self, data_batch: Any, data_samples: Any) -> None:
        is_pair = isinstance(data_samples, (list, tuple)) and len(data_samples) == 2
        scores, labels = data_samples if is_pair else (data_samples, None)
        # Of a single score the highest is always the first.
        fits = isinstance(scores, Tensor) and scores.ndim == 2 and scores.shape[1] > 1
        # Labels of another shape would be compared in pairs with all.
        if not fits or getattr(labels, "shape", None) != scores.shape[:1]:
            given = [
                f"Tensor{tuple(one.shape)}" if isinstance(one, Tensor) else short_repr(one)
                for one in (scores, labels)
            ]
            raise ConfigError(
                "Accuracy takes (scores, labels) from forward(mode='predict'), tensors of shapes "
                "(batch, classes), of two classes at least, and (batch,); "
                f"got {given[0]} and {given[1]}."
            )
        # Left on the device: a transfer here would make every step of the validation wait.
        self.results.append(scores.argmax(dim=1) == labels)

    @override
    def sample_results(self) -> list[bool]:
        batches: list[Tensor] = self.results
        return [hit for batch in batches for hit in batch.tolist()]

    @override
    def compute_metrics(self, results: list[bool]) -> dict[str, float]:
        if not results:
            raise ConfigError(
                "Accuracy has no prediction to evaluate: the loader gave no batch. Make its "
                "batch_size smaller, drop_last false, or the dataset larger."
            )
        return {"accuracy": sum(results) / len(results)}
