"""Check, scale, build and restore the optimizers and schedules of a run."""

from __future__ import annotations

import copy
import inspect
import reprlib
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch

from mm_amp import OptimWrapperDict
from mm_dist import MMDistributedDataParallel
from mm_runner._untrusted import CONTENT_ERRORS, is_finite, is_like
from mm_runner.data import is_endless
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.model import unwrap_model
from mm_runner.optim import (
    build_param_schedulers,
    named_schedulers,
    named_wrappers,
    scale_lr,
)
from mm_runner.validation import check_auto_scale

from ._sharded import as_sharded, write_optimizer
from ._summary import batch_of_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from mm_runner.runner import Runner

# Settings of a parameter group that schedules and torch add.
_ADDED = {"initial_lr", "param_names", "params"}
# Those of torch that take a step without a closure, and with any gradient.
_STEPS_ALONE = (
    *("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD"),
)


def check_wrapper_of_run(model: nn.Module, optim_wrapper: Any) -> None:
    """Refuse an optimizer wrapper, or several, that cannot train the model as it is wrapped."""
    step = getattr(type(model), "train_step", None)
    is_ours = step is MMDistributedDataParallel.train_step or as_sharded(model) is not None
    has_no_step = step is None and unwrap_model(model) is not model
    if isinstance(optim_wrapper, OptimWrapperDict) and (is_ours or has_no_step):
        raise ConfigError(
            f"optim_wrapper: {len(optim_wrapper)} of them were given, {', '.join(optim_wrapper)}, "
            f"and {type(model).__name__} steps the model as a whole, with one. Give "
            "cfg=dict(model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'))."
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    for wrapper in named_wrappers(optim_wrapper).values():
        given = [parameter for group in wrapper.param_groups for parameter in group["params"]]
        if given and of_model.isdisjoint(map(id, given)):
            raise ConfigError(
                f"optim_wrapper: none of the {len(given)} parameters of its "
                f"{type(wrapper.optimizer).__name__} is one of the model's. Build it over this "
                "very model, or give a dict, which is built once the model is wrapped or sharded."
            )


def scale_rates(
    runner: Runner, optim_wrapper: Any, auto_scale_lr: Mapping[str, Any] | None = None
) -> None:
    """Scale the learning rates by how many samples an optimizer step takes, and log it.

    ``auto_scale_lr`` is ``dict(base_batch_size=..., enable=True)``; ``None``, like
    ``enable=False``, leaves learning rates as they are.

    Raises:
        ConfigError: If that number is not known, or there is no ``base_batch_size``.
    """
    if auto_scale_lr is None:
        return
    check_auto_scale(auto_scale_lr, "auto_scale_lr")
    if not auto_scale_lr.get("enable", False):
        return
    per_process = known_batch_size(runner.train_dataloader)
    for name, wrapper in named_wrappers(optim_wrapper).items():
        batch = runner.num_data_ranks * per_process * getattr(wrapper, "accumulative_counts", 1)
        factor = batch / auto_scale_lr["base_batch_size"]
        scale_lr(wrapper, factor)
        of_name = f" of {name}" if name else ""
        runner.logger.info(
            f"auto_scale_lr: batch of {batch}, learning rates{of_name} times {factor:g}."
        )


def known_batch_size(loader: Any) -> int:
    """Return the batch size of one process, by which learning rates are scaled.

    Raises:
        ConfigError: If it is not known.
    """
    size = batch_of_process(loader)
    if size is None:
        raise ConfigError(
            "auto_scale_lr: how many samples a batch has is not known: the train_dataloader has no "
            "batch_size, nor has its batch sampler. Set the learning rate yourself."
        )
    return size


def build_schedules(runner: Runner, scheduler: Any) -> Any:
    """Build schedules over the run's ``optim_wrapper``; of several wrappers, by name.

    Raises:
        ConfigError: If there is no ``optim_wrapper`` yet, or the config does not fit.
    """
    runner.recipe.check_phase("train", "build_param_scheduler()")
    if runner.optim_wrapper is None:
        raise ConfigError(
            "build_param_scheduler() was called before optim_wrapper is built, whose settings it "
            "schedules. In a script: runner.optim_wrapper = runner.build_optim_wrapper(cfg)."
        )
    loader: Any = runner.train_dataloader  # builds the training loop, which has the other lengths
    epoch_length: int | None = None
    with suppress(TypeError):
        # An endless sampler counts the samples of all processes.
        share = runner.num_data_ranks if is_endless(loader) else 1
        epoch_length = max(len(loader) // share, 1) if len(loader) else None
    return build_param_schedulers(
        runner.optim_wrapper,
        scheduler,
        num_epochs=runner.max_epochs,
        num_iters=runner.max_iters,
        epoch_length=epoch_length,
    )


def check_schedules(optim_wrapper: Any, schedules: Any) -> None:
    """Refuse schedules that change other optimizers than those of this training."""
    wrappers = named_wrappers(optim_wrapper).values()
    known = {id(group) for wrapper in wrappers for group in wrapper.param_groups}
    for one in chain.from_iterable(named_schedulers(schedules).values()):
        # By groups: an optimizer around another one, such as one that shards, shares them.
        groups = getattr(getattr(one, "optimizer", None), "param_groups", None)
        if groups is not None and known.isdisjoint(map(id, groups)):
            raise ConfigError(
                "param_schedulers: the schedules assigned are over another "
                f"{type(one.optimizer).__name__} than the one that is trained with. Assign "
                "their config, or assign optim_wrapper first and build them then."
            )


def load_optimizers(runner: Runner, state: Mapping[str, Any] | None) -> None:
    """Load the state of the optimizers, and check their settings.

    torch takes the settings of any other optimizer, and fails with a bare KeyError in the first
    step. A setting that is only missing, as of an older version of the same one, is kept.

    Raises:
        CheckpointError: If the state is that of another optimizer, or of other parameters.
    """
    if state is None:
        runner.logger.warning(
            "The checkpoint has no optimizer state: the optimizer starts from the beginning."
        )
        return
    optimizers = [one.optimizer for one in named_wrappers(runner.optim_wrapper).values()]
    before = [dict(group) for one in optimizers for group in one.param_groups]
    try:
        write_optimizer(runner.model, runner.optim_wrapper, state)
    except (KeyError, ValueError) as error:  # torch's, of other settings or groups of other sizes
        raise _misfit(str(error).rstrip(".")) from error
    kinds = [(type(one).__name__, group) for one in optimizers for group in one.param_groups]
    for (kind, group), own in zip(kinds, before, strict=True):
        missing = own.keys() - group.keys() - _ADDED
        others = group.keys() - own.keys() - _ADDED
        if missing and others:
            has, needs = ", ".join(sorted(others)), ", ".join(sorted(missing))
            raise _misfit(f"it has {has}, and {kind} has {needs}")
        for key in own.keys() & group.keys() - {"params", "param_names"}:
            if not is_like(group[key], own[key]):
                found, needed = reprlib.repr(group[key]), reprlib.repr(own[key])
                raise _misfit(f"its {key} is {found}, and {kind} has {needed}")
        group.update((key, own[key]) for key in missing)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            _check_state(optimizer, group)


def _misfit(reason: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's optimizer does not fit: {reason}. Build the optimizer that the "
        "checkpoint was saved with, over the same parameters; or take the weights alone, by "
        "load_from without resume."
    )


def _check_state(optimizer: Any, group: dict[str, Any]) -> None:
    """Check the state of each parameter, which torch loads unchecked, by a step of another one."""
    kind = type(optimizer)
    if kind.__name__ not in _STEPS_ALONE or kind is not getattr(torch.optim, kind.__name__, None):
        return
    tiny = torch.zeros(1, device=group["params"][0].device, requires_grad=True)
    tiny.grad = torch.zeros_like(tiny)
    names = inspect.signature(kind).parameters.keys() & group.keys() - {"params"}
    try:
        trial: Any = kind([tiny], **{name: copy.deepcopy(group[name]) for name in names})
        trial.step()
    except CONTENT_ERRORS as error:
        raise _misfit(f"{kind.__name__} cannot step with its settings: {error}") from error
    for parameter in group["params"]:
        state = optimizer.state.get(parameter)
        if state is None or not parameter.requires_grad:
            continue
        for key, value in trial.state[tiny].items():
            found = state.get(key)
            if getattr(value, "shape", None) == tiny.shape:
                is_right = getattr(found, "shape", None) == parameter.shape
            else:  # counts and factors
                is_right = value is None or (is_finite(found) and found >= 0)
            if not is_right:
                shape = tuple(parameter.shape)
                raise _misfit(f"its {key} of a parameter of the shape {shape} does not fit")
