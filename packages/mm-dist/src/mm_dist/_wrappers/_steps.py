"""Training and evaluation steps of the model wrappers."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from mm_dist._errors import ArgumentTypeError
from mm_dist._process_group._timeouts import enter_steady_state
from mm_dist._progress import advance_iteration


class OptimWrapperProtocol(Protocol):
    """Methods of an optimizer wrapper that a training step calls."""

    def optim_context(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""

    def update_params(self, loss: Tensor) -> Any:
        """Run backward and, at the end of an accumulation window, step the optimizer."""


def val_step(self: Any, data: Any) -> Any:
    """Return the module's own ``val_step(data)``; nothing is synchronized."""
    return self.module.val_step(data)


def test_step(self: Any, data: Any) -> Any:
    """Return the module's own ``test_step(data)``; nothing is synchronized."""
    return self.module.test_step(data)


def run_train_step(wrapper: Any, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
    """Run forward, backward and the optimizer on one batch."""
    advance_iteration()
    model: Any = wrapper.module
    with optim_wrapper.optim_context(wrapper):
        batch = model.data_preprocessor(data, True)  # noqa: FBT003 (MMEngine's order)
        losses = call_with_batch(wrapper, batch, mode="loss")
    loss, log_vars = model.parse_losses(losses)
    optim_wrapper.update_params(loss)
    # Last: a rank that raises must not be waited for by the others, nor wait for them.
    enter_steady_state()
    return dict(log_vars)


def call_with_batch(wrapper: Any, batch: Any, mode: str) -> Any:
    """Call ``wrapper`` with a batch: a mapping by name, a list or tuple by position."""
    # Through __call__: what the wrapper does around the model's forward must not be bypassed.
    if isinstance(batch, (dict, Mapping)):  # a dict first: the cheaper question
        return wrapper(**batch, mode=mode)
    if isinstance(batch, (list, tuple)):
        return wrapper(*batch, mode=mode)
    raise ArgumentTypeError(
        f"The data_preprocessor of {type(wrapper.module).__name__} returned {type(batch)}; "
        "return a dict (passed to forward by name) or a list or tuple (by position)."
    )


def insert_module(_: nn.Module, state: Any, prefix: str, *__: Any) -> None:
    """Let a wrapper load a state by the names of its module; a hook for before the loading."""
    inner = f"{prefix}module."
    if any(name.startswith(inner) for name in state):
        return  # as the wrapper of another library has saved it
    for name in [name for name in state if name.startswith(prefix)]:
        state[inner + name[len(prefix) :]] = state.pop(name)
