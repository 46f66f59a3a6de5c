"""Tensors in nested containers: checked, compared between ranks, placed for communication."""

import copy
from collections import defaultdict
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import communication_device
from mm_dist._collectives._objects import all_gather_object
from mm_dist._collectives._state import GroupState, group_state
from mm_dist._errors import ArgumentTypeError, CollectiveError
from mm_dist._message import format_ranks

# Path, dtype and shape of each tensor.
Signature = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
_MAX_DIFFERENCES = 8
_increment_version = getattr(torch.autograd.graph, "increment_version", None)  # torch >= 2.1


def check_tensor(data: object, function: str) -> None:
    """Raise ``ArgumentTypeError`` unless ``data`` is a dense tensor."""
    if not isinstance(data, Tensor):
        raise ArgumentTypeError(f"{function} takes a tensor, got {type(data)}.")
    if hasattr(data, "full_tensor"):  # torch's DTensor, which is expensive to import
        raise ArgumentTypeError(
            f"{function} takes a plain tensor, got one that is sharded over a device mesh; call "
            "full_tensor() for all of it, or to_local() for this rank's part."
        )
    if data.layout is not torch.strided:
        raise ArgumentTypeError(
            f"{function} takes dense tensors, got one of layout {data.layout}; call to_dense()."
        )


def flatten(data: Any, function: str, path: str = "data") -> dict[str, Tensor]:
    """Return the tensors in nested containers by path, e.g. ``data['loss'][0]``."""
    if isinstance(data, Tensor):
        check_tensor(data, function)
        return {path: data}
    if not isinstance(data, (Mapping, list, tuple)):
        raise ArgumentTypeError(
            f"{function} takes tensors, in nested dicts, lists and tuples if need be; {path} is "
            f"{type(data)}. Convert it with torch.as_tensor, or leave it out."
        )
    found: dict[str, Tensor] = {}
    for key, value in _items(data):
        found.update(flatten(value, function, f"{path}[{key!r}]"))
    return found


def rebuild(data: Any, tensors: Iterator[Tensor]) -> Any:
    """Return containers like those of ``data`` with other tensors, in ``flatten``'s order."""
    if isinstance(data, Tensor):
        return next(tensors)
    items = {key: rebuild(value, tensors) for key, value in _items(data)}
    if isinstance(data, MutableMapping):
        copied = copy.copy(data)  # keeps what is not an item, as of a defaultdict
        copied.update(items)
        return copied
    if isinstance(data, Mapping):
        return items
    return type(data)(*items.values()) if hasattr(data, "_fields") else type(data)(items.values())


def _items(data: Any) -> list[tuple[Any, Any]]:
    if isinstance(data, Mapping):
        return sorted(data.items(), key=lambda item: (type(item[0]).__name__, str(item[0])))
    return list(enumerate(data))


def read_signature(tensors: Mapping[str, Tensor]) -> Signature:
    """Return path, dtype and shape of each tensor."""
    return tuple((path, data.dtype, tuple(data.shape)) for path, data in tensors.items())


def compare_calls(
    call: str, own: Signature, group: Any, *, are_shapes_equal: bool = True
) -> list[Signature]:
    """Return every rank's signature, in rank order."""
    gathered = all_gather_object((call, own), group)
    is_same_call = len({each for each, _ in gathered}) == 1
    passed = [
        [_describe(*one, is_shape_shown=are_shapes_equal) for one in signature]
        if is_same_call
        else [each]
        for each, signature in gathered
    ]
    if any(each != passed[0] for each in passed):
        common = set.intersection(*map(set, passed))
        ranks_by_text: defaultdict[str, list[int]] = defaultdict(list)
        for rank, items in zip(group_state(group).ranks, passed, strict=True):
            different = [item for item in items if item not in common]
            more = ", ..." if len(different) > _MAX_DIFFERENCES else ""
            text = ", ".join(different[:_MAX_DIFFERENCES]) + more
            ranks_by_text[text or "nothing"].append(rank)
        listed = "; ".join(
            f"rank{'s' * (len(ranks) > 1)} {format_ranks(ranks)}: {text}"
            for text, ranks in ranks_by_text.items()
        )
        raise CollectiveError(
            f"{call if is_same_call else 'A collective'} differs between ranks: {listed}. Call the "
            "same collective on all ranks, with the same names, shapes and dtypes."
        )
    return [signature for _, signature in gathered]


def _describe(
    path: str, dtype: torch.dtype, shape: tuple[int, ...], *, is_shape_shown: bool
) -> str:
    kind = f"{path} {str(dtype).removeprefix('torch.')}"
    return f"{kind} {shape}" if is_shape_shown else kind


def place(data: Tensor, group: Any, state: GroupState) -> Tensor:
    """Return ``data`` without gradient, contiguous, on the device that the group serves."""
    placed = data.detach() if data.requires_grad else data
    # Asking the group takes as long as a small collective, so the answer is kept; but not that it
    # is the current device of an accelerator, which can change.
    if data.device not in state.served:
        device = communication_device(data.device, group)
        if device == data.device:
            state.served.add(device)
        placed = placed.to(device)
    if placed.is_complex() or placed.is_neg():
        placed = placed.resolve_conj().resolve_neg()
    return placed.contiguous()


def write_back(data: Tensor, received: Tensor) -> None:
    """Copy a result into ``data`` unless it shares its memory, and tell autograd of the change.

    A backend writes past autograd: a backward pass that needs the former values must fail
    instead of using the new ones.
    """
    is_same_memory = received.data_ptr() == data.data_ptr() and received.device == data.device
    if received.numel() > 0 and not (is_same_memory and received.dtype == data.dtype):
        data.detach().copy_(received)
    if data.is_inference():  # no backward pass needs it
        return
    if _increment_version is not None:
        _increment_version(data)
    else:
        data.detach().reshape(-1)[:0].zero_()
