"""Turn a model's batch normalisation into one over all ranks, and back."""

import warnings
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._wrappers._batch_norm import SyncBatchNorm

_Module = TypeVar("_Module", bound=nn.Module)
# The class that a converted module had.
_FORMER_CLASS = "_mm_dist_former_class"


class BatchNorm(_BatchNorm):
    """Batch normalisation of inputs with any number of dimensions from two."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 (torch's name)
        if input.dim() < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.dim()}")


def convert_sync_batchnorm(
    module: _Module, implementation: str = "torch", *, process_group: Any = None
) -> _Module:
    """Let every batch normalisation in a model use the batches of all ranks.

    The modules change their class in place. Parameters, statistics, settings, hooks, ``training``
    and who shares what stay as they are, so an optimizer may exist already. What cannot be
    converted keeps to its rank, with a warning.

    Args:
        module: The model, or a batch normalisation itself; lazy ones included.
        implementation: Only ``"torch"``: a subclass of ``torch.nn.SyncBatchNorm``, which works on
            the CPU too.
        process_group: Ranks to normalise over. Defaults to all.

    Returns:
        ``module``.

    Raises:
        ArgumentTypeError: If ``module`` is no module.
        ConfigError: If the implementation is not known.

    Example:
        >>> type(convert_sync_batchnorm(nn.BatchNorm2d(3))).__name__
        'SyncBatchNorm'
    """
    if implementation != "torch":
        raise ConfigError(
            f"implementation={implementation!r} is not supported; only 'torch' is, a subclass of "
            "torch.nn.SyncBatchNorm."
        )
    _check_module(module, "convert_sync_batchnorm")
    for name, child in module.named_modules():
        if isinstance(child, SyncBatchNorm):
            child.process_group = process_group
        elif isinstance(child, _BatchNorm):
            _convert(name, child, process_group)
        elif str(getattr(child, "original_name", "")).startswith("BatchNorm"):
            _warn(name, child, "it is compiled by TorchScript; convert the model before scripting")
    return module


def revert_sync_batchnorm(module: _Module) -> _Module:
    """Undo ``convert_sync_batchnorm``: let each rank, or a single process, use its own batch.

    Modules that torch's own conversion has made accept inputs of any number of dimensions
    afterwards: what they were is not known.

    Args:
        module: The model; changed in place, as in the conversion.

    Returns:
        ``module``.

    Raises:
        ArgumentTypeError: If ``module`` is no module.

    Example:
        >>> type(revert_sync_batchnorm(convert_sync_batchnorm(nn.BatchNorm2d(3)))).__name__
        'BatchNorm2d'
    """
    _check_module(module, "revert_sync_batchnorm")
    for child in module.modules():
        former = child.__dict__.pop(_FORMER_CLASS, None)
        if isinstance(child, nn.SyncBatchNorm):
            child.__class__ = former or BatchNorm  # type: ignore[assignment]
            child.__dict__.pop("process_group", None)
        elif former is not None:  # still lazy
            for name in ("cls_to_become", "process_group"):
                child.__dict__.pop(name, None)
    return module


def _check_module(module: object, function: str) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(
            f"{function} takes a torch.nn.Module, got {type(module)}; pass the model."
        )


def _convert(name: str, child: _BatchNorm, process_group: Any) -> None:
    kind = type(child)
    lazy_target = getattr(child, "cls_to_become", None)
    if lazy_target is not None:
        # torch gives it this class when its first batch tells the number of channels.
        child.__dict__["cls_to_become"] = SyncBatchNorm
        child.__dict__.update({_FORMER_CLASS: lazy_target, "process_group": process_group})
        return
    reason = _reason_against(kind)
    if reason is not None:
        _warn(name, child, reason)
        return
    try:
        child.__class__ = SyncBatchNorm
    except TypeError as error:
        _warn(name, child, str(error))
        return
    child.process_group = process_group
    if kind is not nn.SyncBatchNorm:
        child.__dict__[_FORMER_CLASS] = kind


def _reason_against(kind: type[_BatchNorm]) -> str | None:
    if kind is nn.SyncBatchNorm:
        return None
    if kind.forward is not _BatchNorm.forward:
        return "its class has a forward of its own, which would be lost"
    if any(isinstance(vars(base).get("weight"), property) for base in kind.__mro__):
        return "its weight is parametrized; convert the model before that"
    return None


def _warn(name: str, child: nn.Module, reason: str) -> None:
    warnings.warn(
        f"{name or 'The module'} ({type(child).__name__}) still normalises over its own rank: "
        f"{reason}.",
        UserWarning,
        stacklevel=4,
    )
