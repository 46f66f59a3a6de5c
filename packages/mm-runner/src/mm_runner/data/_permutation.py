"""A permutation of any number of indices that is computed, not stored."""

from __future__ import annotations

from torch import Tensor

__all__ = ["Permutation", "mix"]

# More than cryptographers ask for of large domains; small ones, of a few bits, need them.
_NUM_ROUNDS = 24
_WORD = 0xFFFFFFFF
_WORD_64 = 0xFFFFFFFFFFFFFFFF


class Permutation:
    """A keyed bijection of ``0 .. size - 1``: any element at any time, in constant memory.

    An unbalanced Feistel network (Luby and Rackoff, "How to construct pseudorandom permutations
    from pseudorandom functions", 1988) permutes the smallest power of two that holds ``size``;
    what falls outside is permuted again until it is inside (cycle walking: Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002), twice on average at most. It is no cipher: its
    round function mixes well and no more.

    Args:
        size: How many indices there are, at least 1.
        seed: Chooses the permutation, with ``epoch``; any integer.
        epoch: Chooses the permutation, with ``seed``; any integer.

    Example:
        >>> sorted(Permutation(5, seed=0, epoch=0)[torch.arange(5)].tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        num_bits = max(2, (size - 1).bit_length())
        self._size = size
        self._low_bits = num_bits // 2
        self._high_bits = num_bits - self._low_bits
        state = mix(mix(seed & _WORD_64) ^ (epoch & _WORD_64))
        self._keys = [mix(state + number) & _WORD for number in range(_NUM_ROUNDS)]

    def __getitem__(self, positions: Tensor) -> Tensor:
        """Return what stands at ``positions``: int64, of any shape, each in ``0 .. size - 1``."""
        values = self._permute(positions)
        outside = values >= self._size
        while outside.any():
            values[outside] = self._permute(values[outside])
            outside = values >= self._size
        return values

    def _permute(self, values: Tensor) -> Tensor:
        """Permute ``0 .. 2**num_bits - 1``."""
        left_bits, right_bits = self._high_bits, self._low_bits
        left, right = values >> right_bits, values & ((1 << right_bits) - 1)
        for key in self._keys:
            left, right = right, left ^ (_hash(right, key) & ((1 << left_bits) - 1))
            left_bits, right_bits = right_bits, left_bits
        return (left << right_bits) | right


def _hash(values: Tensor, key: int) -> Tensor:
    """Mix numbers below 2**32 to others; the factors are small, so that no product overflows."""
    # values ^ key, which torch 1.13 does not take from a number under a dispatch mode.
    values = values + key - 2 * (values & key)
    values = ((values ^ (values >> 16)) * 0x7FEB352D) & _WORD
    values = ((values ^ (values >> 15)) * 0x21F0AAAD) & _WORD
    return values ^ (values >> 15)


def mix(value: int) -> int:
    """Return the next number of SplitMix64 (Steele, Lea and Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD_64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD_64
    return value ^ (value >> 31)
