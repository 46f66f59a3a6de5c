"""Plan how the tensors of a dict travel together."""

from collections import defaultdict
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from zlib import crc32

import torch

from mm_dist._collectives._carrier import Carrier
from mm_dist._collectives._signature import Signature
from mm_dist._collectives._tag import TAG_LENGTH

# Small dicts, as those that are logged, travel in a buffer of fixed size with a tag in front:
# where ranks pass different ones, these still fit together, and the ranks find out.
BUFFER_LENGTH = 512
_MAX_TAGGED = BUFFER_LENGTH - TAG_LENGTH
# Beyond it a second collective costs less than a wider dtype.
_MAX_WIDENED = 2**20
_DEVICES_WITH_FLOAT64 = ("cpu", "cuda")
# Their tensors are never float64, or are not reduced in it. Of others it depends on the model.
_DEVICES_WITHOUT_FLOAT64 = ("mps", "npu", "mlu")
_WIDE_FLOATS = (torch.float64, torch.complex128)


@dataclass(frozen=True)
class Part:
    """What travels in one collective.

    Attributes:
        carrier: How.
        runs: Indices of the tensors, those of one dtype together.
    """

    carrier: Carrier
    runs: tuple[tuple[int, ...], ...]

    @property
    def indices(self) -> tuple[int, ...]:
        """All indices, in the order in which the tensors travel."""
        return tuple(chain.from_iterable(self.runs))


@dataclass(frozen=True)
class Plan:
    """How a dict's tensors travel.

    Attributes:
        fingerprint: 32 bits of operation, names, shapes and dtypes.
        parts: One per collective.
        is_tagged: Whether the first part carries the fingerprint.
        tag_dtype: In which a tag travels.
    """

    fingerprint: int
    parts: tuple[Part, ...]
    is_tagged: bool
    tag_dtype: torch.dtype


@lru_cache(maxsize=256)
def make_plan(operation: str, signature: Signature, device_type: str) -> Plan:
    """Return how tensors of this signature travel on devices of a type."""
    small_parts = _make_parts(operation, signature, device_type, is_small=True)
    numel = sum(
        part.carrier.count(signature[index][1], torch.Size(signature[index][2]).numel())
        for part in small_parts
        for index in part.indices
    )
    is_small = numel <= _MAX_TAGGED
    if is_small:
        parts = small_parts
    elif numel <= _MAX_WIDENED:
        parts = _make_parts(operation, signature, device_type, is_small=False)
    else:
        parts = _group(Carrier(operation), [dtype for _, dtype, _ in signature])
    return Plan(
        fingerprint=crc32(repr((operation, signature)).encode()),
        parts=tuple(parts),
        # An 'xor' of equal tags depends on the number of ranks.
        is_tagged=is_small and operation != "bxor",
        tag_dtype=small_parts[0].carrier.dtype or torch.int64,
    )


def _make_parts(
    operation: str, signature: Signature, device_type: str, *, is_small: bool
) -> list[Part]:
    dtypes = [dtype for _, dtype, _ in signature]
    runs = _indices_by(dtypes)
    if not is_small and len(set(dtypes)) == 1:
        return _group(Carrier(operation), dtypes)
    common = _find_carrier(operation, dtypes, device_type, is_small=is_small)
    if common is not None:
        return [Part(common, tuple(runs))]
    parts = []
    for is_float in (False, True):
        of_kind = tuple(run for run in runs if _is_float(dtypes[run[0]]) == is_float)
        found = {dtypes[run[0]] for run in of_kind}
        carrier = _find_carrier(operation, found, device_type, is_small=is_small)
        parts.append(Part(carrier or Carrier(operation), of_kind))
    return parts


def _find_carrier(
    operation: str, dtypes: Collection[torch.dtype], device_type: str, *, is_small: bool
) -> Carrier | None:
    """Return what carries all these dtypes exactly, ``None`` if nothing does."""
    if operation in ("min", "max", "band", "bor", "bxor"):
        return Carrier(operation, torch.int64)
    has_float64 = _has_float64(device_type, dtypes)
    has_only_integers = not any(_is_float(dtype) for dtype in dtypes)
    is_sum = operation != "product"
    # Small dicts travel in one dtype whatever they hold, to fit together where they differ.
    if has_only_integers and dtypes and not (is_small and is_sum and has_float64):
        return Carrier(operation, torch.int64)
    if all(_is_float(dtype) for dtype in dtypes) or (is_sum and has_float64):
        return Carrier(operation, torch.float64 if has_float64 else torch.float32)
    # A product of integers wraps around, which no float does; a sum needs more than 24 bits.
    return None


def _has_float64(device_type: str, dtypes: Collection[torch.dtype]) -> bool:
    if device_type in _DEVICES_WITH_FLOAT64 + _DEVICES_WITHOUT_FLOAT64:
        return device_type in _DEVICES_WITH_FLOAT64
    return any(dtype in _WIDE_FLOATS for dtype in dtypes)


def _group(carrier: Carrier, dtypes: Collection[torch.dtype]) -> list[Part]:
    return [Part(carrier, (run,)) for run in _indices_by(dtypes)]


def _indices_by(keys: Collection[Hashable]) -> list[tuple[int, ...]]:
    """Return the indices of equal keys together, in the order of the keys as text."""
    indices: defaultdict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        indices[key].append(index)
    return [tuple(indices[key]) for key in sorted(indices, key=str, reverse=True)]


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
