"""Check the config of a dataloader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.utils.data import DataLoader

from mm_runner.data._datasets import check_dataset, refuse_left_out
from mm_runner.errors import ConfigError
from mm_runner.registry import (
    DATA_SAMPLERS,
    DATASETS,
    FUNCTIONS,
    check_arguments,
    check_cfg,
    short_repr,
)

from ._components import check_component, check_integer, need_mapping

__all__ = ["OWN_KEYS", "check_dataloader"]

# Keys besides the arguments of torch's DataLoader.
OWN_KEYS = ("num_batch_per_epoch", "disable_subprocess_warning")
_OF_BATCHES = ("sampler", "batch_size")
_CHECKED_APART = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn", *OWN_KEYS)


def check_dataloader(cfg: Any, where: str) -> None:
    """Check the config of a dataloader; a ready one is taken as it is.

    Raises:
        ConfigError: If a key is unknown, missing or of another type.
        ComponentNotFoundError: If a ``type`` names nothing.
    """
    if cfg is None or isinstance(cfg, DataLoader):
        return
    need_mapping(cfg, where, "a DataLoader or a dict")
    plain = {key: value for key, value in cfg.items() if key not in _CHECKED_APART}
    check_arguments(DataLoader, plain, where, is_partial=True)
    _check_there(cfg, where)
    refuse_left_out(cfg, where)
    dataset = cfg["dataset"]
    if isinstance(dataset, Mapping):
        check_component(dataset, DATASETS, f"{where}.dataset")
    else:
        check_dataset(dataset, f"{where}.dataset")
    for name, given in (("sampler", ("dataset", "seed")), ("batch_sampler", _OF_BATCHES)):
        if isinstance(cfg.get(name), Mapping):
            check_component(cfg[name], DATA_SAMPLERS, f"{where}.{name}", given=given)
        elif not _may_sample(cfg.get(name)):
            raise ConfigError(
                f"{where}.{name}: a sampler or a dict with 'type' is needed, got "
                f"{short_repr(cfg[name])}."
            )
    for name in ("collate_fn", "worker_init_fn"):
        _check_function(cfg.get(name), f"{where}.{name}")


def _may_sample(value: Any) -> bool:
    """Return whether ``value`` is no config and may yet be a sampler, such as a list of indices."""
    if isinstance(value, (list, tuple)):
        return all(type(index) in (int, list, tuple) for index in value)
    return not isinstance(value, (bool, int, float, str))


def _check_there(cfg: Mapping[str, Any], where: str) -> None:
    given = ", ".join(map(repr, cfg)) or "none"
    if "dataset" not in cfg:
        raise ConfigError(
            f"{where}.dataset: this key is missing; given: {given}. It is a dataset, or a dict "
            "with its 'type' and arguments."
        )
    if cfg.get("batch_sampler") is None and cfg.get("batch_size") is None:
        raise ConfigError(
            f"{where}.batch_size: this key is missing; given: {given}. It is the number of samples "
            "per process and step."
        )
    for name in ("batch_size", "num_batch_per_epoch"):
        check_integer(cfg, name, where, least=1)


def _check_function(function: Any, where: str) -> None:
    """Check a function given as a name, as a config, or as itself."""
    if isinstance(function, str):
        function = {"type": function}
    if isinstance(function, Mapping):
        # It is called with a batch or a worker's number later: what is missing now comes then.
        check_cfg(function, FUNCTIONS, where=where, is_partial=True)
    elif function is not None and not callable(function):
        raise ConfigError(
            f"{where}: a name ({', '.join(FUNCTIONS.names())}), a dict with 'type' or a function "
            f"is needed, got {function!r}."
        )
