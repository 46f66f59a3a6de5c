"""The compiled step: ``torch.compile`` makes one kernel of all that a rule does with a tensor."""

from collections.abc import Callable, Container, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from mm_npu._errors import TorchVersionError

from ._operands import Operands
from ._rules import NormRule, Options, Rule, descend, prepare_whole, run_whole


def check_can_compile(rule: Rule | NormRule) -> None:
    """Prepare to compile a rule.

    Raises:
        TorchVersionError: If this torch cannot compile, or not on this Python.
    """
    _compile(rule)  # type: ignore[arg-type] # a class or function is hashable


def run_compiled(
    rule: Rule | NormRule, batch: Sequence[Operands], options: Options, varying: Container[str]
) -> None:
    """Apply a rule to all operands of ``batch`` at once, which are of one shape and dtype.

    The kernel has the options built in, and is compiled anew for another value of them, but for
    those that ``varying`` names: they change from step to step.
    """
    plain = tuple(map(_as_plain_operands, batch))
    numbers = {
        name: torch.tensor(value, dtype=torch.float64, device="cpu")
        if name in varying and not isinstance(value, Tensor)
        else value
        for name, value in options.items()
    }
    _compile(rule)(plain, numbers)  # type: ignore[arg-type]
    # The compiled step leaves no trace in the count of changes, by which autograd refuses a
    # backward through what was changed since; writing nothing does.
    for operands in batch:
        operands.p.view(-1)[:0].zero_()


def _as_plain_operands(operands: Operands) -> Operands:
    state = {name: _as_plain(value) for name, value in operands.state.items()}
    return Operands(_as_plain(operands.p), _as_plain(operands.gradient), state)


def _as_plain(tensor: Tensor) -> Tensor:
    # The compiler looks at what a view is a view of, and would compile anew for another shape.
    storage, offset = tensor.untyped_storage(), tensor.storage_offset()
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return plain.set_(storage, offset, tensor.size(), tensor.stride())


@cache
def _compile(rule: Any) -> Callable[[Sequence[Operands], Options], None]:
    """Compile a ``Rule`` or ``NormRule``, once per process; the first call runs the compiler."""
    if not hasattr(torch, "compile"):
        raise TorchVersionError(
            f"compiled=True was asked for, and there is torch {torch.__version__}; it needs torch "
            ">= 2.0. Upgrade torch, or leave compiled out."
        )
    try:
        if callable(rule):
            return _compile_function(_run_all, rule)
        prepare, finish = _compile_function(prepare_whole, rule), _compile_function(descend)
    except RuntimeError as error:  # torch 2.0 on Python 3.11
        raise TorchVersionError(
            f"compiled=True was asked for, and torch {torch.__version__} cannot compile here "
            f"({error}). Upgrade torch, or leave compiled out."
        ) from error

    def update(batch: Sequence[Operands], options: Options) -> None:
        for operands in batch:
            finish(operands.p, *prepare(operands, options))

    return update


def _run_all(rule: Rule, batch: Sequence[Operands], options: Options) -> None:
    for operands in batch:
        run_whole(rule, operands, options)


def _compile_function(function: Callable[..., Any], *bound: Any) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        return function(*bound, *arguments)

    # The compiler keeps, and limits, what it has compiled per code object: one for each rule.
    code = run.__code__.replace()
    own = FunctionType(code, run.__globals__, run.__name__, None, run.__closure__)
    # dynamic: stacks and parameters of all sizes share one kernel. torch 2.0 fails to make it, and
    # makes one for each size.
    dynamic = not torch.__version__.startswith("2.0.")
    return torch.compile(own, dynamic=dynamic)  # type: ignore[no-any-return, unused-ignore]
