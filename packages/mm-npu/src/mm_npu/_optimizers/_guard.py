"""Checks around ``torch_npu``'s own optimizers, which do not say what they cannot do.

They pack all parameters of a dtype, and their gradients, into one buffer when they first find a
gradient. What has none then is never updated; what is sharded, or gets its gradients from another
buffer, is updated wrongly.
"""

import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from mm_npu._errors import FusedOptimizerError

from ._npu_state import with_int_step
from ._packing import (
    Trained,
    check_parameters,
    prepare_gradients,
    trained_parameters,
    warn_untrained,
)

# What step, zero_grad, the fused clipping and torch_npu's GradScaler call as long as the first flag
# is not set. A release that packs in another way has another name for it.
_PACK, _IS_PACKED, _HAS_STATES = (
    "_maybe_init_combined_params_and_grads",
    "is_params_grads_combined",
    "is_states_combined",
)


def guard_native(optimizer: Any) -> None:
    """Check the parameters of a fresh optimizer, and its gradients when it packs them."""
    check_parameters(type(optimizer).__name__, trained_parameters(optimizer))
    if hasattr(type(optimizer), _PACK):
        for name, guarded in _GUARDED.items():
            _wrap(optimizer, name, guarded)


def _wrap(optimizer: Any, name: str, guarded: Callable[..., Any]) -> None:
    """Call ``guarded(optimizer, method, *args)`` in place of a method."""
    method, reference = getattr(type(optimizer), name), weakref.ref(optimizer)

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        # By a weak reference, as torch's schedulers: a cycle would keep the device's memory.
        return guarded(reference(), method, *args, **kwargs)

    setattr(optimizer, name, call)


def _pack(optimizer: Any, method: Callable[..., Any]) -> None:
    name, trained = type(optimizer).__name__, list(trained_parameters(optimizer))
    packed = [each for each in trained if each.parameter.grad is not None]
    left_out = [each for each in trained if each.parameter.grad is None]
    if packed:  # none: zero_grad before the first backward
        prepare_gradients(name, packed)
        if left_out:
            warn_untrained(name, left_out)
    method(optimizer)
    if packed and getattr(optimizer, _IS_PACKED):
        del vars(optimizer)[_PACK]
        if hasattr(optimizer, "register_step_pre_hook"):  # torch >= 2.0
            optimizer.register_step_pre_hook(_make_step_check(packed[0], left_out))


def _make_step_check(packed: Trained, left_out: list[Trained]) -> Callable[..., None]:
    """Return a step hook that refuses gradients which ``torch_npu`` would silently ignore."""
    assert packed.parameter.grad is not None
    address = packed.parameter.grad.data_ptr()

    def check(optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        name, gradient = type(optimizer).__name__, packed.parameter.grad
        if gradient is None or gradient.data_ptr() != address:
            raise FusedOptimizerError(
                f"{name} cannot step: the gradient of {packed.name} is not the tensor that "
                "torch_npu has packed; something has replaced it, such as model.zero_grad(). Clear "
                "gradients with optimizer.zero_grad(), which writes zeros."
            )
        for each in left_out:
            if each.parameter.grad is not None:
                raise FusedOptimizerError(
                    f"{name} cannot step: {each.name} has got its first gradient after the first "
                    "step, when torch_npu had packed its parameters, and would not be updated. "
                    "Give it p.grad = torch.zeros_like(p) before the first step."
                )

    return check


def _add_param_group(
    optimizer: Any, method: Callable[..., Any], param_group: dict[str, Any]
) -> None:
    name = type(optimizer).__name__
    if getattr(optimizer, _IS_PACKED):
        raise FusedOptimizerError(
            f"{name} was given a parameter group after its first step; torch_npu has packed its "
            "parameters by then, and would fail or not update others. Give all groups to the "
            "constructor, with lr=0 for those that are trained later."
        )
    method(optimizer, param_group)
    try:
        check_parameters(name, trained_parameters(optimizer))
    except BaseException:
        optimizer.param_groups.pop()
        raise


def _load_state_dict(
    optimizer: Any, method: Callable[..., Any], state_dict: Mapping[str, Any]
) -> None:
    # torch's own classes count in tensors, which torch_npu would count up twice.
    state = {index: with_int_step(entry) for index, entry in state_dict["state"].items()}
    method(optimizer, {**state_dict, "state": state})
    # Packed anew in the next step; otherwise torch_npu would keep the states that it has packed.
    setattr(optimizer, _HAS_STATES, False)


def _state_dict(optimizer: Any, method: Callable[..., Any]) -> dict[str, Any]:
    if getattr(optimizer, _HAS_STATES):
        _write_steps(optimizer)
    state_dict: dict[str, Any] = method(optimizer)
    return state_dict


def _write_steps(optimizer: Any) -> None:
    """Write the count of steps to each parameter's state, where BertAdam's stays at zero."""
    params = optimizer.params_lists_indexed_by_group
    packed = optimizer.combined_param_states_indexed_by_group
    for params_of_group, packed_of_group in zip(params, packed, strict=True):
        for params_of_dtype, state in zip(params_of_group, packed_of_group, strict=True):
            for p in params_of_dtype if "step" in state else ():
                optimizer.state[p]["step"] = state["step"]


_GUARDED: Mapping[str, Callable[..., Any]] = {
    _PACK: _pack,
    "add_param_group": _add_param_group,
    "load_state_dict": _load_state_dict,
    "state_dict": _state_dict,
}
