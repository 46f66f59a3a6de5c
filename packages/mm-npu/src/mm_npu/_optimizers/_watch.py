"""What goes wrong with packed parameters later, noticed in backward and refused at the next step.

Optimizers of ``torch_npu`` would end in a ``KeyError``, or leave parameters as they are. The hooks
cost nothing: they run once, when backward first reaches their parameter, and are removed.
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mm_npu._errors import FusedOptimizerError

from ._packable import Trained

Check = Callable[[], None]


def watch_left_out(optimizer: Any, left_out: Trained) -> None:
    """Refuse to step from when a parameter that was not packed gets a gradient."""
    message = (
        f"{type(optimizer).__name__} cannot step: {left_out.name} has got its first gradient after "
        "the first step, when torch_npu had packed its parameters, and would not be updated. Give "
        "it p.grad = torch.zeros_like(p) before the first step."
    )

    def refuse_if_there() -> None:
        if left_out.parameter.grad is not None:
            raise FusedOptimizerError(message)
        watch_left_out(optimizer_reference(), left_out)  # that was torch.autograd.grad

    optimizer_reference = weakref.ref(optimizer)

    def note(gradient: Tensor) -> None:
        del gradient
        handle.remove()
        _check_before_next_step(optimizer_reference(), refuse_if_there)

    handle = left_out.parameter.register_hook(note)  # type: ignore[no-untyped-call]


def watch_packed(optimizer: Any, packed: Trained) -> None:
    """Refuse the second step if the gradient of a packed parameter was replaced since the first.

    It is looked at when it gets its next value. What has set it aside may put it back until the
    step.
    """
    p = packed.parameter
    assert p.grad is not None
    address, reference = p.grad.data_ptr(), weakref.ref(optimizer)
    message = (
        f"{type(optimizer).__name__} cannot step: the gradient of {packed.name} is not the tensor "
        "that torch_npu has packed; something has replaced it, such as model.zero_grad(). Clear "
        "gradients with optimizer.zero_grad(), which writes zeros."
    )

    def refuse_if_replaced() -> None:
        if p.grad is None or p.grad.data_ptr() != address:
            raise FusedOptimizerError(message)

    def note(gradient: Tensor) -> None:
        del gradient
        handle.remove()
        if p.grad is None or p.grad.data_ptr() != address:
            _check_before_next_step(reference(), refuse_if_replaced)

    handle = p.register_hook(note)  # type: ignore[no-untyped-call]


def _check_before_next_step(optimizer: Any, check: Check) -> None:
    """Let the next call of ``optimizer.step`` begin with ``check()``; if that passes, only that."""
    if optimizer is None:  # thrown away since
        return
    own, reference = vars(optimizer).get("step"), weakref.ref(optimizer)

    def step(*args: Any, **kwargs: Any) -> Any:
        check()
        stepping: Any = reference()
        if own is None:
            vars(stepping).pop("step", None)
        else:  # that of a scheduler
            stepping.step = own
        return stepping.step(*args, **kwargs)

    optimizer.step = step
