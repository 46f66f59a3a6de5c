"""Find components in the registries of MMEngine and its libraries, and adopt their objects."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import mmengine.registry as theirs
from mmengine.evaluator import BaseMetric
from mmengine.evaluator import Evaluator as TheirEvaluator
from mmengine.hooks import CheckpointHook, LoggerHook
from mmengine.hooks import Hook as TheirHook

from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook

if TYPE_CHECKING:
    from collections.abc import Callable

# MMEngine's root registry for each kind of component.
_ROOTS = {
    "model": theirs.MODELS,
    "dataset": theirs.DATASETS,
    "data sampler": theirs.DATA_SAMPLERS,
    "function": theirs.FUNCTIONS,
    "metric": theirs.METRICS,
    "evaluator": theirs.EVALUATOR,
    "hook": theirs.HOOKS,
    "loop": theirs.LOOPS,
    "optimizer": theirs.OPTIMIZERS,
    "optim wrapper": theirs.OPTIM_WRAPPERS,
    "optim wrapper constructor": theirs.OPTIM_WRAPPER_CONSTRUCTORS,
    "parameter scheduler": theirs.PARAM_SCHEDULERS,
    "transform": theirs.TRANSFORMS,
    "task util": theirs.TASK_UTILS,
    "visualizer": theirs.VISUALIZERS,
    "visualizer backend": theirs.VISBACKENDS,
    "weight initializer": theirs.WEIGHT_INITIALIZERS,
    "inferencer": theirs.INFERENCERS,
}


def find(kind: str, name: str, scope: str | None) -> Callable[..., Any] | None:
    """Return a component of the library ``scope``, or with ``None`` one of MMEngine's own."""
    # An evaluator, of several datasets say, stands where metrics do.
    kinds = ("metric", "evaluator") if kind == "metric" else (kind,)
    found = (_find(_ROOTS[one], name, scope) for one in kinds if one in _ROOTS)
    return next((one for one in found if one is not None), None)


def _find(root: theirs.Registry, name: str, scope: str | None) -> Callable[..., Any] | None:
    component: Callable[..., Any] | None
    if scope is None:
        component = root.get(name)
        return component
    try:
        has_registries = find_spec(f"{scope}.registry") is not None
    except ModuleNotFoundError:  # no package
        has_registries = False
    if not has_registries:
        return None
    import_module(f"{scope}.registry")
    registry = root.children.get(scope)
    if registry is None:  # it has none of this kind
        return None
    registry.import_from_location()
    component = registry.module_dict.get(name)
    return component


def adopt(kind: str, value: Any) -> Any:
    """Return a hook, metric or evaluator of MMEngine as one of ours; others unchanged."""
    if kind == "hook" and isinstance(value, (CheckpointHook, LoggerHook)):
        base = "CheckpointHook" if isinstance(value, CheckpointHook) else "LoggerHook"
        raise ConfigError(
            f"{type(value).__name__} derives from MMEngine's {base}, which works with MMEngine's "
            f"Runner only; derive it from mm_runner.hooks.{base}."
        )
    if kind == "hook" and isinstance(value, TheirHook):
        stages = {
            stage: staticmethod(getattr(value, stage)) for stage in value.get_triggered_stages()
        }
        return type(type(value).__name__, (LibraryHook,), stages)(value)
    if kind == "metric" and isinstance(value, BaseMetric):
        return LibraryEvaluator(TheirEvaluator(value))
    if kind == "metric" and isinstance(value, TheirEvaluator):
        return LibraryEvaluator(value)
    return value


class LibraryHook(Hook):
    """A hook of MMEngine; :func:`adopt` derives a class with the stages that it overrides.

    Args:
        hook: Of MMEngine or one of its libraries.
    """

    def __init__(self, hook: TheirHook) -> None:
        self.hook = hook
        self.priority = hook.priority


class LibraryEvaluator:
    """An evaluator of MMEngine, which makes dicts of data elements, as one metric of ours.

    Args:
        evaluator: Of MMEngine or one of its libraries.
    """

    def __init__(self, evaluator: TheirEvaluator) -> None:
        self.evaluator = evaluator

    @property
    def dataset_meta(self) -> Any:
        """The dataset's ``metainfo``."""
        return self.evaluator.dataset_meta

    @dataset_meta.setter
    def dataset_meta(self, value: Any) -> None:
        self.evaluator.dataset_meta = value

    def reset(self) -> None:
        """Clear the results of an interrupted evaluation."""
        for metric in self.evaluator.metrics:
            metric.results.clear()

    def process(self, data_batch: Any, data_samples: Any) -> None:
        """Pass the predictions for one batch."""
        self.evaluator.process(data_samples, data_batch)

    def evaluate(self, size: int) -> dict[str, Any]:
        """Gather and reduce what was collected."""
        metrics: dict[str, Any] = self.evaluator.evaluate(size)
        return metrics
