"""Search for the largest batch size that fits in memory."""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import override

from mm_runner.data import DataSettings, build_dataloader
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.optim import named_wrappers

from ._crash import is_out_of_memory
from ._trial import EndOfTrialError, endless_config, train_with, trial_directory

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Of the optimizer: the first makes its state, the second has it beside the gradients.
_NUM_STEPS = 2
_WHAT = "find-batch-size"


def find_batch_size(
    cfg: Mapping[str, Any],
    *,
    start: int = 2,
    maximum: int = 1024,
    report_trial: Callable[[int, bool], None] = lambda *_: None,
) -> int:
    """Take training steps with growing batches until the memory is full.

    The batch is doubled until it does not fit, and the range in between bisected. Each trial has a
    new model and optimizer, and the device's memory to itself; the hooks of mm-runner are left out.
    Custom hooks run too, and clean up, but get no ``after_train`` and ``after_run``. All takes
    place in one process.

    Args:
        cfg: A full configuration, as for ``Runner.from_cfg``. It is copied, but for the dataset.
        start: First batch size to try.
        maximum: Largest batch size to try; the length of the dataset limits it too.
        report_trial: Called with each batch size and whether it fits.

    Returns:
        The largest batch size that fits, 0 if none does.

    Raises:
        ConfigError: If the configuration or an argument does not fit.
        Exception: What a step raises besides errors of memory.

    Example:
        >>> find_batch_size(cfg, maximum=64)  # doctest: +SKIP
        48
    """
    with trial_directory({**cfg, "launcher": "none"}, _WHAT) as (directory, device):
        where = "train_dataloader"
        given = cfg.get(where)
        changes = {"launcher": "none", "load_from": None, where: given and {"dataset": None}}
        endless = endless_config({**cfg, **changes}, directory, _WHAT)  # without the data
        settings = DataSettings(0, torch.Generator(), 0, 1)
        dataset: Any = build_dataloader(given or {}, settings, shuffle=False, where=where).dataset
        if given and given.get("batch_size", 1) is None:
            raise ConfigError(f"{_WHAT}: the dataset gives whole batches; set their size there.")
        if hasattr(dataset, "__len__"):
            maximum = min(maximum, len(dataset))
        if not 0 < start <= maximum:
            raise ConfigError(
                f"{_WHAT}: 0 < start <= max <= number of samples is needed; got start={start}, "
                f"max={maximum}."
            )

        def fits(size: int) -> bool:
            loader = {**(given or {}), "dataset": dataset, "batch_size": size}
            is_fit = _try({**copy.deepcopy(endless), where: loader}, device)
            report_trial(size, is_fit)
            return is_fit

        largest, too_large = 0, start
        while fits(too_large):
            largest, too_large = too_large, min(2 * too_large, maximum)
            if largest == maximum:
                break
        while too_large - largest > 1:
            middle = (largest + too_large) // 2
            if fits(middle):
                largest = middle
            else:
                too_large = middle
    return largest


def _try(cfg: Mapping[str, Any], device: torch.device) -> bool:
    """Return whether a few steps fit in memory; free what they allocated."""
    is_fit = True
    try:
        train_with(cfg, _FirstSteps())
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        is_fit = False
    # After the except block: the error's frames hold tensors.
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.reset()  # it keeps compiled models alive
    gc.collect()
    empty_cache = getattr(getattr(torch, device.type, None), "empty_cache", None)
    if empty_cache is not None:
        empty_cache()
    return is_fit


class _FirstSteps(Hook):
    """Ends a run after some steps of the optimizer."""

    priority = "LOWEST"

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        wrappers = named_wrappers(runner.optim_wrapper).values()
        window = max(getattr(one, "accumulative_counts", 1) for one in wrappers)
        if runner.iter >= _NUM_STEPS * window:  # not after the step: a signal is obeyed there
            synchronize = getattr(getattr(torch, runner.device.type, None), "synchronize", None)
            if synchronize is not None:
                synchronize()  # errors of the device come here, and not in the next trial
            raise EndOfTrialError
