"""The steps that a training loop calls, for every wrapper of ours."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor, nn

from mm_dist._errors import ArgumentTypeError
from mm_dist._process_group import enter_steady_state, steady_switch
from mm_dist._progress import advance_iteration


class OptimWrapperProtocol(Protocol):
    """What a training step needs of an optimizer wrapper, mm-amp's or anybody's."""

    def optim_context(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context of the forward pass."""

    def update_params(self, loss: Tensor) -> Any:
        """Run backward and, when it is time, the optimizer."""


# The evaluation steps of wrappers whose module can evaluate by itself. Functions, to be taken as
# methods: each further base of a class makes looking up its attributes slower.


def val_step(self: Any, data: Any) -> Any:
    """Return the module's own ``val_step(data)``; nothing is synchronised.

    Raises:
        ArgumentTypeError: If the module has none.
    """
    check_methods(self, "val_step", "val_step")
    return self.module.val_step(data)


def test_step(self: Any, data: Any) -> Any:
    """Return the module's own ``test_step(data)``; nothing is synchronised.

    Raises:
        ArgumentTypeError: If the module has none.
    """
    check_methods(self, "test_step", "test_step")
    return self.module.test_step(data)


def run_train_step(
    wrapper: Any,
    data: Any,
    optim_wrapper: OptimWrapperProtocol,
    check_reduction: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run forward, backward and the optimizer on one batch.

    The first step of a process ends with ``enter_steady_state``.

    Args:
        wrapper: A module with the model as ``module``; its own call synchronises or gathers.
        data: One batch, as the model's ``data_preprocessor`` takes it.
        optim_wrapper: Provides the context of the forward pass, and runs backward.
        check_reduction: Raises if the gradients were not averaged.

    Returns:
        The ``log_vars`` of the model's ``parse_losses``, on the device.

    Raises:
        ArgumentTypeError: If the model lacks a method that a step needs, or its preprocessor
            returns no mapping, list or tuple.
    """
    advance_iteration()
    model: Any = wrapper._modules["module"]  # noqa: SLF001 (wrapper.module, at a fraction of its cost)
    # A lookup costs as much as some of the calls: one each, and the check only where one fails.
    preprocess = getattr(model, "data_preprocessor", None)
    parse_losses = getattr(model, "parse_losses", None)
    if not (callable(preprocess) and callable(parse_losses)):
        check_methods(wrapper, "train_step", "data_preprocessor", "parse_losses")
    with optim_wrapper.optim_context(wrapper):
        batch = preprocess(data, True)  # type: ignore[misc] # noqa: FBT003 (MMEngine's order)
        losses = call_with_batch(wrapper, batch, mode="loss")
    loss, log_vars = parse_losses(losses)  # type: ignore[misc]
    optim_wrapper.update_params(loss)
    if check_reduction is not None:
        check_reduction()
    # Last: a rank that raises must not be waited for by the others, nor wait for them.
    if steady_switch.is_due:
        enter_steady_state()
    return dict(log_vars)


def call_with_batch(wrapper: Any, batch: Any, mode: str) -> Any:
    """Call ``wrapper`` with a batch: a mapping by name, a list or tuple by position.

    Raises:
        ArgumentTypeError: If it is none of these.
    """
    # Through __call__: what the wrapper does around the model's forward must not be bypassed.
    if isinstance(batch, (dict, Mapping)):  # a dict first: the cheaper question
        return wrapper(**batch, mode=mode)
    if isinstance(batch, (list, tuple)):
        return wrapper(*batch, mode=mode)
    raise ArgumentTypeError(
        f"The data_preprocessor of {type(wrapper.module).__name__} returned {type(batch)}; "
        "return a dict (passed to forward by name) or a list or tuple (by position)."
    )


def check_methods(wrapper: Any, step: str, *names: str) -> None:
    """Check that the wrapped model has what a step calls.

    Raises:
        ArgumentTypeError: If something is missing.
    """
    missing = [name for name in names if not callable(getattr(wrapper.module, name, None))]
    if missing:
        raise ArgumentTypeError(
            f"{type(wrapper).__name__}.{step} calls {', '.join(names)} of the module; "
            f"{type(wrapper.module).__name__} lacks {', '.join(missing)}. Add it, or call the "
            "wrapper and the optimizer yourself."
        )
