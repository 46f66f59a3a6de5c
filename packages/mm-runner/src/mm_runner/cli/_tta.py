"""``mm-runner test --tta``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mm_runner.config import Config
from mm_runner.errors import ConfigError

__all__ = ["use_views"]


def use_views(cfg: Config) -> None:
    """Let the test of a configuration predict from several views of each sample.

    ``tta_model``, the config of a :class:`~mm_runner.model.BaseTTAModel`, is put around the model;
    ``tta_pipeline``, if there is one, takes the place of the test dataset's ``pipeline``.

    Raises:
        ConfigError: If there is no ``tta_model``, or no ``pipeline`` to replace.
    """
    model = cfg.get("tta_model")
    if not isinstance(model, Mapping):
        raise ConfigError(
            f"tta_model: --tta was given, and this key is {'missing' if model is None else model}. "
            "It is the config of a mm_runner.model.BaseTTAModel, which merges the predictions."
        )
    hook = {"type": "PrepareTTAHook", "tta_cfg": {k: v for k, v in model.items() if k != "module"}}
    cfg.custom_hooks = [*(cfg.get("custom_hooks") or []), hook]
    if cfg.get("tta_pipeline") is None:
        return
    loader = cfg.get("test_dataloader")
    found = list(_with_pipeline(loader.get("dataset") if isinstance(loader, Mapping) else None))
    if not found:
        raise ConfigError(
            "tta_pipeline: --tta was given, and test_dataloader.dataset has no 'pipeline' that it "
            "could replace. Let the test dataset give the views, and leave tta_pipeline out."
        )
    for dataset in found:
        dataset["pipeline"] = cfg.tta_pipeline


def _with_pipeline(dataset: Any) -> Iterator[Any]:
    """Yield the configs of datasets with a ``pipeline``, also those within others."""
    if not isinstance(dataset, Mapping):
        return
    if "pipeline" in dataset:
        yield dataset
    inner = dataset.get("datasets", [])
    for one in (dataset.get("dataset"), *(inner if isinstance(inner, (list, tuple)) else [])):
        yield from _with_pipeline(one)
