"""Checks around ``torch_npu``'s own optimizers, which do not say what they cannot do.

They lay all parameters of a dtype, and their gradients, end to end in one memory: once, when they
first find a gradient. What has none then is never updated; what is no plain tensor of its own, or
gets its gradients from elsewhere, is updated wrongly. The checks run when an optimizer is made and
when it packs, and before its second step; after that, each step is ``torch_npu``'s, to the last
call.
"""

import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from mm_npu._errors import FusedOptimizerError

from ._arguments import check_dense_gradients
from ._packable import (
    check_no_views,
    check_parameters,
    part_gradients,
    tell_of_left_out,
    trained_parameters,
)
from ._step_count import int_step
from ._watch import watch_left_out, watch_packed

# What step, zero_grad, the fused clipping and torch_npu's GradScaler call as long as the first flag
# is not set. A release that packs in another way has another name for it.
_PACK, _IS_PACKED, _HAS_STATES = (
    "_maybe_init_combined_params_and_grads",
    "is_params_grads_combined",
    "is_states_combined",
)


def guard_native(optimizer: Any) -> None:
    """Check what an optimizer of ``torch_npu`` was given, and watch until it has packed that.

    Args:
        optimizer: Fresh, of one of the classes in ``torch_npu.optim``.

    Raises:
        ConfigError: If it cannot train one of its parameters.
    """
    check_parameters(type(optimizer).__name__, trained_parameters(optimizer))
    if hasattr(type(optimizer), _PACK):
        for name, guarded in _GUARDED.items():
            _put_before(optimizer, name, guarded)


def _put_before(optimizer: Any, name: str, guarded: Callable[..., Any]) -> None:
    """Let calls of a method go through ``guarded(optimizer, method, *args)``."""
    method, reference = getattr(type(optimizer), name), weakref.ref(optimizer)

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        # By a weak reference, as torch's schedulers: a cycle would keep the device's memory.
        return guarded(reference(), method, *args, **kwargs)

    setattr(optimizer, name, call)


def _pack(optimizer: Any, method: Callable[..., Any]) -> None:
    trained = list(trained_parameters(optimizer))
    packed = [each for each in trained if each.parameter.grad is not None]
    left_out = [each for each in trained if each.parameter.grad is None]
    if not packed:  # zero_grad before the first backward
        method(optimizer)
        return
    name = type(optimizer).__name__
    check_dense_gradients(name, [each.parameter for each in packed])
    check_no_views(name, packed)
    part_gradients(packed)
    if left_out:
        tell_of_left_out(name, left_out)
    method(optimizer)
    if getattr(optimizer, _IS_PACKED):
        del vars(optimizer)[_PACK]
        watch_packed(optimizer, packed[0])
        for each in left_out:
            watch_left_out(optimizer, each)


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
    state = {index: int_step(entry) for index, entry in state_dict["state"].items()}
    method(optimizer, {**state_dict, "state": state})
    # Packed anew in the next step; torch_npu would go on with the states that it has packed.
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
