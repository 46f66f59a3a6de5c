"""Reduce the tensors of a dict together."""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from mm_dist._collectives._nested import flatten, rebuild
from mm_dist._collectives._operations import check_operation, read_operation
from mm_dist._collectives._reduction import reduce_placed
from mm_dist._collectives._signature import check_call, compare_signatures, read_signature
from mm_dist._collectives._state import group_state
from mm_dist._collectives._wire import place_on_wire
from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._process_group import is_distributed

_MAX_VERIFIED = 4096


def all_reduce_dict(data: dict[Any, Any], op: str = "sum", group: Any = None) -> None:
    """Reduce every tensor of a dict over all ranks, in place; one all-reduce per dtype.

    A tensor that was computed with gradients, as a loss, is replaced in the dict instead: what a
    backward pass needs stays as it is.

    Names, shapes and dtypes that are new to the ranks are compared before the first reduction.
    With ``MM_DIST_DEBUG=1`` every call is compared.

    Args:
        data: Name to tensor, or to nested dicts, lists and tuples of tensors. Names, shapes and
            dtypes agree on all ranks; the order need not.
        op: As in ``all_reduce``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dict, or holds something else than dense tensors.
        CollectiveError: If names, shapes, dtypes or ``op`` differ between ranks, as far as they
            are compared; raised on all of them.
        ConfigError: If the operation is not known, or has no meaning for a dtype, or if this rank
            is not in the group.

    Example:
        >>> all_reduce_dict({"loss": torch.tensor(2.0)}, "mean")
    """
    if not isinstance(data, dict):
        raise ArgumentTypeError(f"all_reduce_dict takes a dict of tensors, got {type(data)}.")
    tensors = flatten(data, "all_reduce_dict")
    check_operation(op)
    for path, tensor in tensors.items():
        try:
            read_operation(op, tensor.dtype)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    if not is_distributed():
        return
    if any(tensor.grad_fn is not None for tensor in tensors.values()):
        own = (t if t.grad_fn is None else t.detach().clone() for t in tensors.values())
        data.update(rebuild(data, own))
        tensors = flatten(data, "all_reduce_dict")
    _compare_where_due(tensors, op, group)
    by_kind: defaultdict[tuple[str, str], list[Tensor]] = defaultdict(list)
    for tensor in tensors.values():
        by_kind[str(tensor.dtype), tensor.device.type].append(tensor)
    for kind in sorted(by_kind):
        _reduce_alike(by_kind[kind], op, group)


def _compare_where_due(tensors: dict[str, Tensor], op: str, group: Any) -> None:
    state, signature = group_state(group), read_signature(tensors)
    call = f"all_reduce_dict(op={op.lower()!r})"
    if (call, signature) in state.verified and not state.is_checked:
        return
    check_call(call, group)
    compare_signatures(call, signature, group)
    if len(state.verified) >= _MAX_VERIFIED:
        state.verified.clear()  # on all ranks at once, as they add together
    state.verified.add((call, signature))


def _reduce_alike(tensors: list[Tensor], op: str, group: Any) -> None:
    """Reduce tensors of one dtype together."""
    state = group_state(group)
    operation = read_operation(op, tensors[0].dtype)
    flat = torch.cat([place_on_wire(tensor, group, state).reshape(-1) for tensor in tensors])
    reduced = reduce_placed(flat, operation, group, state)
    for tensor, values in zip(
        tensors, torch.split(reduced, [tensor.numel() for tensor in tensors]), strict=True
    ):
        tensor.detach().copy_(values.view(tensor.shape))
