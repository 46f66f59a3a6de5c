"""Ask one step which dtypes it really computes in."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ._errors import ConfigTypeError, TorchVersionError
from ._receipt import AmpReceipt, Tally
from ._weight_cache import drops_gradients


def amp_receipt(model: nn.Module) -> AbstractContextManager[AmpReceipt]:
    """Record which dtypes a step really computes in, and how much of the work each one does.

    Every operation is looked at below autocast and autograd, so the step is slow, though its
    results are the same: run it once, to check. A compiled model runs eagerly meanwhile, as
    compiled kernels cannot be looked into. Operations are told apart by the module whose forward
    calls them; backward counts for the module whose forward it differentiates.

    Args:
        model: The model, wrapped or not.

    Returns:
        A context manager for one step. It gives an ``AmpReceipt``, complete when the step ends.

    Raises:
        ConfigTypeError: If ``model`` is no module.
        TorchVersionError: Before torch 2.0, or, for a compiled model, 2.6.

    Example:
        >>> model = torch.nn.Linear(100, 100)
        >>> with amp_receipt(model) as receipt, autocast("cpu", "bfloat16"):
        ...     output = model(torch.ones(50, 100))
        >>> print(receipt)
        module type  count  dtypes that ran (operations)  MFLOPs  low precision
        Linear           1  bfloat16 1                     1.000         100.0%
        all                 3 casts                        1.000         100.0%
    """
    if not isinstance(model, nn.Module):
        raise ConfigTypeError(
            f"model is a {type(model).__name__}; a receipt needs the torch.nn.Module that runs."
        )
    if not hasattr(torch._C, "_current_graph_task_id"):  # noqa: SLF001 - for backward, torch 2.0
        raise TorchVersionError(
            f"a receipt was asked for, and torch {torch.__version__} cannot tell which node of "
            "backward is running; use torch 2.0 or newer."
        )
    drops_gradients()  # what that runs to find out is not the model's work
    return _record(model, _eager(model))


@contextmanager
def _record(model: nn.Module, eager: AbstractContextManager[Any]) -> Iterator[AmpReceipt]:
    from ._receipt_recorder import WorkRecorder  # noqa: PLC0415 - imports are cheap, this is not

    tally = Tally()
    with eager, WorkRecorder(model, tally).watch():
        yield AmpReceipt(tally)


def _eager(model: nn.Module) -> AbstractContextManager[Any]:
    """Return a context in which compiled code is left alone and the original runs."""
    compiler: Any = getattr(torch, "compiler", None)
    if hasattr(compiler, "set_stance"):
        stance: AbstractContextManager[Any] = compiler.set_stance("force_eager")
        return stance
    if any(_is_compiled(module) for module in model.modules()):
        raise TorchVersionError(
            f"a receipt was asked for of a compiled model, which torch {torch.__version__} cannot "
            "run eagerly for once; ask before compiling it, or use torch 2.6 or newer."
        )
    return nullcontext()


def _is_compiled(module: nn.Module) -> bool:
    compiled_call = getattr(module, "_compiled_call_impl", None)
    forward = vars(module).get("forward")
    return (
        hasattr(module, "_orig_mod")
        or compiled_call is not None
        or hasattr(forward, "_torchdynamo_orig_callable")
    )
