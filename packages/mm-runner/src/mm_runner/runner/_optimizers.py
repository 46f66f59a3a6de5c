"""The optimizer wrapper of a run, or several of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mm_amp import AmpOptimWrapper, OptimWrapper, OptimWrapperDict
from mm_dist import MMDistributedDataParallel
from mm_runner.errors import ConfigError
from mm_runner.model import BaseModel, unwrap_model
from mm_runner.optim import named_schedulers, named_wrappers, refuse_closure, scale_lr

from ._checks import checked_mapping
from ._sharded import as_sharded
from ._summary import batch_of_process

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from mm_runner.runner import Runner

__all__ = ["check_wrapper_of_run", "scale_rates"]

# What the Runner and its hooks ask of a wrapper, besides what train_step does.
_ASKED = (
    "get_lr",
    "initialize_count_status",
    "last_result",
    "load_state_dict",
    "num_skipped",
    "optimizer",
    "param_groups",
    "state_dict",
    "step_skipped",
)


def check_wrapper_of_run(model: nn.Module, optim_wrapper: Any) -> None:
    """Check that the optimizer wrapper, or several of them, can train the model.

    Raises:
        ConfigError: If not, also for how the model is wrapped.
    """
    if isinstance(optim_wrapper, OptimWrapperDict):
        _check_train_step(model, optim_wrapper)
    for name, wrapper in named_wrappers(optim_wrapper).items():
        _check_complete(wrapper)
        _check_parameters(model, wrapper)
        _check_step(model, wrapper, f"optim_wrapper.{name}" if name else "optim_wrapper")


def scale_rates(
    runner: Runner, optim_wrapper: Any, auto_scale_lr: Mapping[str, Any] | None
) -> None:
    """Scale the learning rates by how many samples an optimizer step takes, and log it.

    Args:
        runner: Has the training loader.
        optim_wrapper: A wrapper, or several.
        auto_scale_lr: ``dict(base_batch_size=..., enable=True)``; ``None``, like ``enable=False``,
            leaves learning rates as they are.

    Raises:
        ConfigError: If that number is not known, there is no ``base_batch_size``, or schedules
            have taken up the learning rates already.
    """
    known = ("base_batch_size", "enable")
    auto_scale_lr = checked_mapping(auto_scale_lr, "auto_scale_lr", known)
    if not auto_scale_lr.get("enable", False):
        return
    if any(named_schedulers(runner.param_schedulers or []).values()):
        raise ConfigError(
            "scale_lr: the schedules are built, and go on from the learning rates that they found. "
            "Scale these before: in train() scale_lr() comes before build_param_scheduler()."
        )
    for name, wrapper in named_wrappers(optim_wrapper).items():
        _settle_batch(runner, wrapper, f" of {name}" if name else "", auto_scale_lr)


def _check_complete(wrapper: Any) -> None:
    missing = [name for name in _ASKED if not hasattr(wrapper, name)]
    if missing:
        raise ConfigError(
            f"optim_wrapper: {type(wrapper).__name__} has no {', no '.join(missing)}; derive it "
            "from mm_amp.OptimWrapper or mm_amp.AmpOptimWrapper."
        )


def _check_step(model: nn.Module, wrapper: Any, where: str) -> None:
    """Raise if the optimizer steps only with a closure, and nobody is there to give one."""
    own = getattr(unwrap_model(model), "train_step", None)
    is_ours = own is None or getattr(own, "__func__", None) is BaseModel.train_step
    if is_ours and type(wrapper) in (OptimWrapper, AmpOptimWrapper):
        refuse_closure(type(wrapper.optimizer), f"{where}.optimizer")


def _check_parameters(model: nn.Module, wrapper: Any) -> None:
    """Raise if a ready-made optimizer is over another model, or over this one before sharding."""
    own = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in wrapper.param_groups for parameter in group["params"]]
    if given and own.isdisjoint(map(id, given)):
        raise ConfigError(
            f"optim_wrapper: none of the {len(given)} parameters of its "
            f"{type(wrapper.optimizer).__name__} is one of the model's, which would learn nothing. "
            "Build it over this very model, or give a dict, which is built once the model is "
            "wrapped or sharded."
        )


def _settle_batch(
    runner: Runner, wrapper: Any, of_whom: str, auto_scale_lr: Mapping[str, Any]
) -> None:
    """Scale the learning rates by how many samples an optimizer step takes."""
    per_process = batch_of_process(runner.train_dataloader)
    if per_process is None:
        raise ConfigError(
            "auto_scale_lr: how many samples a batch has is not known, as the train_dataloader's "
            "batch sampler has no 'batch_size'. Give it one, or set the learning rate yourself."
        )
    batch = runner.world_size * per_process * getattr(wrapper, "accumulative_counts", 1)
    factor = scale_lr(wrapper, auto_scale_lr, batch)
    runner.logger.info(
        f"auto_scale_lr: batch of {batch}, learning rates{of_whom} times {factor:g}."
    )


def _check_train_step(model: nn.Module, optim_wrapper: OptimWrapperDict) -> None:
    """Raise unless it is the model's own ``train_step`` that gets the wrappers."""
    own = getattr(type(model), "train_step", None)
    is_ours = own is MMDistributedDataParallel.train_step or as_sharded(model) is not None
    if is_ours or (own is None and unwrap_model(model) is not model):
        raise ConfigError(
            f"optim_wrapper: {len(optim_wrapper)} of them were given, "
            f"{', '.join(optim_wrapper)}, and {type(model).__name__} steps the model as a whole, "
            "with one. To let the model's own train_step choose, give "
            "cfg=dict(model_wrapper_cfg=dict(type='MMSeparateDistributedDataParallel'))."
        )
