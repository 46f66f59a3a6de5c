"""Reduce the tensors of a dict together."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mm_dist._backends import CPU_DEVICE, communication_device
from mm_dist._collectives._check import compare_calls
from mm_dist._collectives._dict_plan import BUFFER_LENGTH, Part, Plan, make_plan
from mm_dist._collectives._nested import flatten, rebuild
from mm_dist._collectives._object_wire import ObjectWire
from mm_dist._collectives._objects import all_gather_object
from mm_dist._collectives._operations import read_operation
from mm_dist._collectives._reduction import reduce_placed
from mm_dist._collectives._signature import Signature, raise_difference, read_signature
from mm_dist._collectives._state import GroupState, group_state
from mm_dist._collectives._tag import TAG_LENGTH, make_tag, read_tag
from mm_dist._collectives._wire import place_on_wire
from mm_dist._errors import ArgumentTypeError, CollectiveError, ConfigError
from mm_dist._process_group import is_distributed

_MAX_VERIFIED = 4096
_MAX_FRAMES = 256


def all_reduce_dict(data: dict[Any, Any], op: str = "sum", group: Any = None) -> None:
    """Reduce every tensor of a dict over all ranks, in place, in one collective.

    A tensor that was computed with gradients, as a loss, is replaced in the dict instead: what a
    backward pass needs stays as it is.

    Tensors of different dtypes travel in one that carries all of them exactly, mostly
    ``float64``: sums of floats are rounded once, at the end, those of integers are exact. Where no
    dtype carries all, it takes one collective for floats and one for integers: for products, and
    for sums on devices without ``float64``. Beyond a million elements each dtype has its own.

    Ranks whose dicts differ find out, in the same collective: always on the CPU and up to 446
    elements; else when a rank comes with names, shapes and dtypes that are new to it, which then
    costs a synchronisation or a second collective. With ``MM_DIST_DEBUG=1`` every call is compared
    before.

    Args:
        data: Name to tensor, or to nested dicts, lists and tuples of tensors. Names, shapes and
            dtypes agree on all ranks; the order need not.
        op: As in ``all_reduce``.
        group: Ranks that take part, of which this one must be a member. Defaults to all.

    Raises:
        ArgumentTypeError: If ``data`` is no dict, or holds something else than dense tensors.
        CollectiveError: If names, shapes, dtypes or ``op`` differ between ranks. Raised on all of
            them; on accelerators only on those to which their dict is new.
        ConfigError: If the operation is not known, or has no meaning for a dtype, or if this rank
            is not in the group.

    Example:
        >>> all_reduce_dict({"loss": torch.tensor(2.0)}, "mean")
    """
    if not isinstance(data, dict):
        raise ArgumentTypeError(f"all_reduce_dict takes a dict of tensors, got {type(data)}.")
    tensors = flatten(data, "all_reduce_dict")
    operation = _read_common_operation(op, tensors)
    if is_distributed():
        if any(tensor.grad_fn is not None for tensor in tensors.values()):
            _replace_results(data, tensors)
            tensors = flatten(data, "all_reduce_dict")
        _DictReduction(operation, tensors, group).run()


def _replace_results(data: dict[Any, Any], tensors: dict[str, Tensor]) -> None:
    """Put copies in the place of tensors that a backward pass may still need, as a loss."""
    own = (t if t.grad_fn is None else t.detach().clone() for t in tensors.values())
    data.update(rebuild(data, own))


def _read_common_operation(op: str, tensors: dict[str, Tensor]) -> str:
    operation = read_operation(op, torch.int64)
    for path, tensor in tensors.items():
        try:
            read_operation(op, tensor.dtype)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    return operation


class _DictReduction:
    """One reduction of the tensors of a dict."""

    def __init__(self, operation: str, tensors: dict[str, Tensor], group: Any) -> None:
        self._operation = operation
        self._tensors = list(tensors.values())
        self._signature: Signature = read_signature(tensors)
        self._group = group
        self._state: GroupState = group_state(group)
        self._device = _find_device(self._tensors, group, self._state)
        self._plan: Plan = make_plan(operation, self._signature, self._device.type)

    def run(self) -> None:
        """Compare the ranks' dicts as far as that is due, and reduce them."""
        plan = self._plan
        if self._state.is_checked:
            self._compare()
        if not plan.is_tagged and self._is_new():
            # By what leaves the same traces as the reductions of ranks that send a tag along.
            operation = "product" if self._operation == "product" else "max"
            self._reduce_tagged(torch.empty(0, dtype=plan.tag_dtype), operation, is_looking=True)
        for number, part in enumerate(plan.parts):
            packed, operation = self._pack(part), part.carrier.operation_on_wire
            if number == 0 and plan.is_tagged:
                is_looking = self._device.type == "cpu" or self._is_new()
                reduced = self._reduce_tagged(packed, operation, is_looking=is_looking)
            else:
                reduced = reduce_placed(packed, operation, self._group, self._state)
            self._unpack(part, reduced)

    def _is_new(self) -> bool:
        return self._plan.fingerprint not in self._state.verified

    def _pack(self, part: Part) -> Tensor:
        packed = [part.carrier.pack(self._join(run)) for run in part.runs]
        if not packed:
            return torch.empty(0, dtype=part.carrier.dtype, device=self._device)
        return packed[0] if len(packed) == 1 else torch.cat(packed)

    def _join(self, run: Sequence[int]) -> Tensor:
        """Return a copy of the elements of tensors of one dtype, where they travel."""
        placed = [place_on_wire(self._tensors[index], self._group, self._state) for index in run]
        return torch.cat([tensor.reshape(-1).to(self._device) for tensor in placed])

    def _unpack(self, part: Part, reduced: Tensor) -> None:
        """Write the results of a part back."""
        for run in part.runs:
            tensors = [self._tensors[index] for index in run]
            sizes = [tensor.numel() for tensor in tensors]
            dtype = tensors[0].dtype
            count = part.carrier.count(dtype, sum(sizes))
            result = part.carrier.unpack(reduced[:count], dtype, self._state.world_size)
            for tensor, values in zip(tensors, torch.split(result, sizes), strict=True):
                tensor.detach().copy_(values.view(tensor.shape))
            reduced = reduced[count:]

    def _reduce_tagged(self, packed: Tensor, operation: str, *, is_looking: bool) -> Tensor:
        """Reduce in a buffer of fixed size, with a tag in front that says what is in it."""
        tag, room = self._make_frame(packed.numel(), is_looking=is_looking)
        whole = torch.cat([tag, packed.to(self._device), room])
        reduced = reduce_placed(whole, operation, self._group, self._state)
        if is_looking:
            self._look(reduced[:TAG_LENGTH])
        return reduced[TAG_LENGTH:]

    def _make_frame(self, length: int, *, is_looking: bool) -> tuple[Tensor, Tensor]:
        """Return the tag, and the room behind what it is the tag of."""
        dtype, frames = self._plan.tag_dtype, self._state.frames
        # Kept, because it would wait for the accelerator to copy a tag to it.
        key = (self._plan.fingerprint, dtype, self._device, length, is_looking)
        if key not in frames:
            if len(frames) >= _MAX_FRAMES:
                frames.clear()
            tag = make_tag(self._plan.fingerprint, dtype, is_looking=is_looking)
            room = torch.zeros(BUFFER_LENGTH - TAG_LENGTH - length, dtype=dtype)
            frames[key] = tag.to(self._device), room.to(self._device)
        return frames[key]

    def _look(self, tag: Tensor) -> None:
        is_same, all_look = read_tag(tag)
        if not is_same:
            if all_look:
                self._compare()
            names = ", ".join(path for path, _, _ in self._signature) or "nothing"
            raise CollectiveError(
                f"{self._call} was called with a dict that other ranks do not have: this rank's "
                f"holds {names}. Give the same names, shapes and dtypes on every rank."
            )
        if len(self._state.verified) >= _MAX_VERIFIED:
            self._state.verified.clear()  # on all ranks at once, as they add together
        self._state.verified.add(self._plan.fingerprint)

    def _compare(self) -> None:
        """Compare operations and dicts with those of all other ranks, which must come here too."""
        compare_calls(ObjectWire(self._group), self._call)
        signatures = all_gather_object(self._signature, self._group)
        if len(set(signatures)) > 1:
            raise_difference(self._call, signatures, self._state.ranks)

    @property
    def _call(self) -> str:
        return f"all_reduce_dict(op={self._operation!r})"


def _find_device(tensors: list[Tensor], group: Any, state: GroupState) -> torch.device:
    """Return where the tensors travel: with one on an accelerator, all follow it."""
    on_accelerators = (tensor.device for tensor in tensors if not tensor.is_cpu)
    device = next(on_accelerators, CPU_DEVICE)
    return device if device in state.served else communication_device(device, group)
