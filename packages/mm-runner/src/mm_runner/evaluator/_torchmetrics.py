"""Adapter for metrics of torchmetrics."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr

from ._predictions import select, size_of

__all__ = ["TorchMetric", "is_torch_metric"]

# Where the words of a class's name begin.
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def is_torch_metric(value: Any) -> bool:
    """Return whether ``value`` is a metric or collection of torchmetrics, or a class of these."""
    library = sys.modules.get("torchmetrics")  # imported, if there is one of its objects
    if library is None:
        return False
    kind = value if inspect.isclass(value) else type(value)
    return issubclass(kind, (library.Metric, library.MetricCollection))


class TorchMetric:
    """Feeds a metric of torchmetrics with what ``forward(mode='predict')`` returns.

    That is ``(preds, target)``, or a dict of the arguments of its ``update``. Over the processes it
    gathers its state itself. A single value is reported by the name of the class in lower case:
    ``multiclass_accuracy``.

    Args:
        metric: A metric, or a collection of them.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.dataset_meta: Any = None
        self._num_samples = 0
        # The newest batch waits: it may hold samples that only fill up the process's share.
        self._newest: Any = None

    def reset(self) -> None:
        self.metric.reset()
        self._num_samples, self._newest = 0, None

    def process(self, data_batch: Any, data_samples: Any) -> None:  # noqa: ARG002 - as of a metric
        is_pair = isinstance(data_samples, (list, tuple)) and len(data_samples) == 2
        if not (is_pair or isinstance(data_samples, Mapping)):
            raise ConfigError(
                f"{type(self.metric).__name__} takes (preds, target), or a dict of what its "
                f"update() takes, from forward(mode='predict'), got {short_repr(data_samples)}."
            )
        self._update()
        self._newest = tuple(data_samples) if is_pair else data_samples
        self._num_samples += size_of(self._newest)

    def evaluate(self, size: int) -> dict[str, Any]:
        rank, world_size = mm_dist.get_dist_info()
        excess = 0
        if sum(mm_dist.all_gather_object(self._num_samples)) > size:
            excess = self._num_samples - len(range(rank, size, world_size))
        self._update(leave_out=max(excess, 0))
        # Equal as its own synchronisation makes it, or, where that is switched off, the main one's.
        values = self.metric.compute()
        name = _WORDS.sub("_", type(self.metric).__name__).lower()
        named = values if isinstance(values, Mapping) else {name: values}
        results = [{str(k): v.tolist() if isinstance(v, Tensor) else v for k, v in named.items()}]
        mm_dist.broadcast_object_list(results)
        self.reset()
        return results[0]

    def _update(self, leave_out: int = 0) -> None:
        newest, self._newest = self._newest, None
        if leave_out and newest is not None:
            newest = select(newest, range(size_of(newest) - leave_out))
        if newest is None or not size_of(newest):
            return
        positional, named = ((), newest) if isinstance(newest, Mapping) else (newest, {})
        for value in (*positional, *named.values()):
            if isinstance(value, Tensor):
                self.metric.to(value.device)
        try:
            self.metric.update(*positional, **named)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{type(self.metric).__name__}.update() refused what forward(mode='predict') "
                f"returned: {error}"
            ) from error
