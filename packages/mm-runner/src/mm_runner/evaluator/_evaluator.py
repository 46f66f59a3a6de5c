"""Evaluator: runs several metrics, also those of torchmetrics."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner.data import map_tensors, pseudo_collate
from mm_runner.errors import ComponentNotFoundError, ConfigError
from mm_runner.registry import EVALUATOR, METRICS, adopt, build_from_cfg, short_repr
from mm_runner.registry._build import path_within

from ._metric import BaseMetric, as_number, warn_of_surplus
from ._predictions import select, size_of

# Where the words of a class's name begin.
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Evaluator:
    """Feeds every batch to each of its metrics.

    Args:
        metrics: A metric, the config of one, or a list of these.
        where: Path of the configuration, for messages; ``None`` finds that of ``metrics`` itself.

    Raises:
        ConfigError: If there is no metric, or one is neither a metric nor the config of one.
    """

    def __init__(self, metrics: Any, *, where: str | None = None) -> None:
        where = where or path_within(metrics) or "evaluator"
        is_list = isinstance(metrics, Sequence) and not isinstance(metrics, str)
        listed = list(metrics) if is_list else [metrics]
        if not listed:
            raise ConfigError(f"{where}: at least one metric is needed; got an empty list.")
        self.metrics = [_build(metric, where) for metric in listed]

    @property
    def dataset_meta(self) -> Any:
        """The dataset's ``metainfo``, such as its classes, which every metric gets; or ``None``."""
        return self.metrics[0].dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, value: Any) -> None:
        for metric in self.metrics:
            metric.dataset_meta = value

    def reset(self) -> None:
        """Clear the results of an interrupted evaluation."""
        for metric in self.metrics:
            if hasattr(metric, "reset"):  # users' metrics may lack it
                metric.reset()

    def process(self, data_samples: Any, data_batch: Any = None) -> None:
        """Pass the predictions for one batch to every metric."""
        for metric in self.metrics:
            metric.process(data_batch, data_samples)

    def evaluate(self, size: int) -> dict[str, float]:
        """Return all metrics by name.

        Args:
            size: Number of samples in the dataset.

        Raises:
            ConfigError: If two metrics report the same name.
        """
        results: dict[str, float] = {}
        for metric in self.metrics:
            for name, value in metric.evaluate(size).items():
                if name in results:
                    raise ConfigError(
                        f"Two metrics report {name!r}; give one of them a 'prefix' of its own."
                    )
                # A number of NumPy or torch would neither be logged nor fit into a checkpoint.
                number = as_number(value)
                results[name] = value if number is None else number
        return results

    def reported_names(self) -> list[str] | None:
        """Return the names of all metrics; ``None`` if one does not say which it reports."""
        is_own = type(self).evaluate is not Evaluator.evaluate
        found: list[str] = []
        for metric in self.metrics:
            names = metric.reported_names() if isinstance(metric, BaseMetric) else None
            if names is None or is_own:
                return None
            found += names
        return found

    def offline_evaluate(
        self, data_samples: Any, data: Sequence[Any] | None = None, chunk_size: int = 1
    ) -> dict[str, float]:
        """Return all metrics of predictions that are there already.

        In a run of several processes each gives all of them, and takes its share.

        Args:
            data_samples: Predictions for all samples, as :func:`load_predictions` returns them: a
                list with an entry per sample, tensors with a row for each, or a tuple or dict.
            data: What the samples were predicted from, in the same order; metrics get a chunk of
                it as ``pseudo_collate`` puts it together.
            chunk_size: How many samples metrics get at a time.

        Raises:
            ConfigError: If there is no sample, or another number of data than of samples.

        Example:
            >>> import torch
            >>> predictions = (torch.eye(2), torch.tensor([0, 0]))
            >>> Evaluator({"type": "Accuracy"}).offline_evaluate(predictions, chunk_size=2)
            {'accuracy': 0.5}
        """
        size = size_of(data_samples)
        if not size or (data is not None and len(data) != size):
            given = "" if data is None else f", and of data {len(data)}"
            raise ConfigError(f"data_samples: {size} predictions were given{given}.")
        self.reset()
        rank, world_size = mm_dist.get_dist_info()
        for begin in range(rank, size, world_size * chunk_size):
            end = min(begin + world_size * chunk_size, size)
            chunk = range(begin, end, world_size)
            batch = None if data is None else pseudo_collate([data[index] for index in chunk])
            self.process(select(data_samples, slice(begin, end, world_size)), batch)
        return self.evaluate(size)


def build_evaluator(value: Any, *, where: str = "evaluator") -> Evaluator:
    """Build an evaluator."""
    if isinstance(value, Evaluator):
        return value
    kind = evaluator_type(value)
    if kind is None:
        return Evaluator(value, where=where)
    return build_from_cfg({**value, "type": kind}, METRICS, where=where)  # type: ignore[no-any-return]


def evaluator_type(cfg: Any) -> type[Evaluator] | None:
    """Return the evaluator class of a config; ``None`` if it is the config of a metric."""
    if not isinstance(cfg, Mapping):
        return None
    kind = cfg.get("type", "Evaluator" if "metrics" in cfg else None)
    if isinstance(kind, str):
        registry = EVALUATOR if kind.rpartition(".")[2] in EVALUATOR else METRICS
        try:
            kind = registry.get(kind)
        except (ComponentNotFoundError, ConfigError):
            return None  # who builds a metric of it says what is wrong
    if getattr(kind, "__name__", "") in EVALUATOR:  # MMEngine's stand for ours
        kind = EVALUATOR.resolve(kind)
    return kind if isinstance(kind, type) and issubclass(kind, Evaluator) else None


def _build(metric: Any, where: str) -> Any:
    if inspect.isclass(metric):
        metric = {"type": metric}
    if isinstance(metric, Mapping):
        metric = build_from_cfg(metric, METRICS, where=where)
    if is_torch_metric(metric):
        return _TorchMetric(metric)
    metric = metric if isinstance(metric, BaseMetric) else adopt("metric", metric)
    if not (hasattr(metric, "process") and hasattr(metric, "evaluate")):
        raise ConfigError(
            f"{where}: a metric with process() and evaluate() is needed, got {short_repr(metric)}."
        )
    return metric


def is_torch_metric(value: Any) -> bool:
    """Return whether ``value`` is a metric or collection of torchmetrics, or a class of these."""
    library = sys.modules.get("torchmetrics")  # imported, if there is one of its objects
    if library is None:
        return False
    kind = value if inspect.isclass(value) else type(value)
    return issubclass(kind, (library.Metric, library.MetricCollection))


class _TorchMetric:
    """Feeds a metric of torchmetrics with what ``forward(mode='predict')`` returns.

    That is a tuple, often ``(preds, target)``, or a dict of arguments of its ``update``. The main
    process merges the states of all and computes: torchmetrics' own synchronization waits forever
    where the processes hold lists of different lengths. A single value is reported by the name of
    the class in lower case: ``multiclass_accuracy``.
    """

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        kind = sys.modules["torchmetrics"].Metric
        self._parts: list[Any] = [one for one in metric.modules() if isinstance(one, kind)]
        for part in self._parts:
            part.distributed_available_fn = bool  # returns False
        parameters = inspect.signature(metric.update).parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._names = None if takes_any else parameters.keys()
        self.dataset_meta: Any = None
        self._num_samples = 0
        # The newest batch waits: it may hold samples that only fill up the process's share.
        self._newest: Any = None

    def reset(self) -> None:
        self.metric.reset()
        self._num_samples, self._newest = 0, None

    def process(self, data_batch: Any, data_samples: Any) -> None:  # noqa: ARG002 - as of a metric
        is_pair = isinstance(data_samples, list) and len(data_samples) == 2
        if not (is_pair or isinstance(data_samples, (tuple, Mapping))):
            raise ConfigError(
                f"{type(self.metric).__name__} takes (preds, target), or another tuple or a dict "
                "of what its update() takes, from forward(mode='predict'), got "
                f"{short_repr(data_samples)}."
            )
        self._update()
        self._newest = tuple(data_samples) if is_pair else data_samples
        self._num_samples += size_of(self._newest)

    def evaluate(self, size: int) -> dict[str, Any]:
        share, rank = self._num_samples, mm_dist.get_rank()
        shares = dict(enumerate(mm_dist.all_gather_object(share)))
        total = sum(shares.values())
        warn_of_surplus(self.metric, total, size)
        if share and total > size:
            having = [one for one, number in shares.items() if number]
            share = len(range(having.index(rank), size, len(having)))
        self._update(leave_out=max(self._num_samples - share, 0))
        gathered: list[Any] = []
        if mm_dist.get_world_size() > 1:
            gathered = mm_dist.gather_object([_state_of(part) for part in self._parts]) or []
        results: dict[str, Any] = run_on_main(lambda: self._compute(gathered))
        self.reset()
        return results

    def _compute(self, gathered: list[Any]) -> dict[str, Any]:
        for part, states in zip(self._parts, zip(*gathered)):  # noqa: B905 - none of one process
            _restore(part, states)
        values = self.metric.compute()
        name = _WORDS.sub("_", type(self.metric).__name__).lower()
        return dict(_flat(values if isinstance(values, Mapping) else {name: values}))

    def _update(self, leave_out: int = 0) -> None:
        newest, self._newest = self._newest, None
        if leave_out and newest is not None:
            newest = select(newest, slice(max(size_of(newest) - leave_out, 0)))
        if newest is None or not size_of(newest):
            return
        devices: list[Any] = []
        map_tensors(newest, lambda one: devices.append(one.device))
        if devices:
            self.metric.to(devices[0])
        if not isinstance(newest, Mapping):
            self.metric.update(*newest)
        else:  # it may hold arguments of other metrics
            names = self._names or newest
            self.metric.update(**{key: newest[key] for key in newest if key in names})


def _state_of(part: Any) -> tuple[int, dict[str, Any]]:
    """Return how often a metric was updated, and its state, of which nothing is a view."""
    state = {name: getattr(part, name) for name in part._reductions}  # noqa: SLF001 - not public
    return part.update_count, map_tensors(state, lambda one: one.detach().to("cpu", copy=True))


def _restore(part: Any, states: Sequence[tuple[int, dict[str, Any]]]) -> None:
    """Merge the states of all processes that have updated a metric, each as it asks for."""
    updated = [state for count, state in states if count]
    part._update_count = sum(count for count, _ in states)  # noqa: SLF001 - or it warns
    for name, reduction in part._reductions.items() if updated else ():  # noqa: SLF001
        merged: Any = [state[name] for state in updated]
        if isinstance(merged[0], list):  # which one process does not reduce either
            merged = [one for state in merged for one in state]
        else:
            merged = torch.stack(merged) if len(merged) > 1 else merged[0]
            if reduction is not None and len(updated) > 1:
                merged = reduction(merged)
        setattr(part, name, map_tensors(merged, lambda one: one.to(part.device)))


def _flat(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names with numbers, or lists of them."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", map_tensors(value, Tensor.tolist)
