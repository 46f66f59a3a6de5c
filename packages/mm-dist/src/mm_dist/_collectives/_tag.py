"""Send a fingerprint along with a reduction, and see from the result whether all sent the same.

Each bit of it travels as two numbers, the bit and its complement. Where all ranks agree, exactly
one of the two is 0 afterwards. Where they differ, a sum, a maximum or a bitwise *or* leaves none
of them 0, and a product both. This holds in every dtype, for any number of ranks, and all see it.
"""

import torch
from torch import Tensor

_NUM_BITS = 32
TAG_LENGTH = 2 * (_NUM_BITS + 1)


def make_tag(fingerprint: int, dtype: torch.dtype, *, is_looking: bool) -> Tensor:
    """Return the numbers to reduce, shape ``(TAG_LENGTH,)``.

    Args:
        fingerprint: Of 32 bits.
        dtype: Of the result.
        is_looking: Whether this rank is going to look at what comes back.
    """
    bits = [fingerprint >> position & 1 for position in range(_NUM_BITS)] + [int(is_looking)]
    return torch.tensor([*bits, *(1 - bit for bit in bits)], dtype=dtype)


def read_tag(reduced: Tensor) -> tuple[bool, bool]:
    """Look at what came back: a synchronisation, if it is on an accelerator.

    Args:
        reduced: The tags after any of those operations, shape ``(TAG_LENGTH,)``.

    Returns:
        Whether all ranks sent the same fingerprint, and whether all ranks are looking.
    """
    bits, complements = (reduced.cpu() != 0).chunk(2)
    differs = bits == complements
    return not differs[:_NUM_BITS].any(), bool(bits[_NUM_BITS] & ~complements[_NUM_BITS])
