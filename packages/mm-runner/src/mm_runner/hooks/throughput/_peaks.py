"""What devices can compute at most, as their makers say: data with its sources.

Dense matrix products, in floating-point operations per second. Makers often print the number for
sparse matrices, which is twice that.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Peak", "peak_of"]


class Peak(NamedTuple):
    """One kind of device.

    Attributes:
        words: All are part of the device's name, in lower case.
        half: Of float16 and bfloat16.
        tf32: Of float32 with matrix units; 0 where there is no such thing.
        single: Of float32 without.
        source: The maker's page with the number, or with the datasheet that has it.
    """

    words: tuple[str, ...]
    half: float
    tf32: float
    single: float
    source: str


_T = 1e12
_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"
# The first that fits counts: the special before the general.
PEAKS = (
    Peak(("b200",), 2250 * _T, 1125 * _T, 80 * _T, f"{_NVIDIA}/hgx/"),
    Peak(("h200",), 989.4 * _T, 494.7 * _T, 66.9 * _T, f"{_NVIDIA}/h200/"),
    Peak(("h100", "pcie"), 756 * _T, 378 * _T, 51 * _T, f"{_NVIDIA}/h100/"),
    Peak(("h100", "nvl"), 835 * _T, 417 * _T, 60 * _T, f"{_NVIDIA}/h100/"),
    Peak(("h100",), 989.4 * _T, 494.7 * _T, 66.9 * _T, f"{_NVIDIA}/h100/"),
    Peak(("a100",), 312 * _T, 156 * _T, 19.5 * _T, f"{_NVIDIA}/a100/"),
    # An A100 whose links are slower.
    Peak(("a800",), 312 * _T, 156 * _T, 19.5 * _T, f"{_NVIDIA}/a100/"),
    Peak(("a40",), 149.7 * _T, 74.8 * _T, 37.4 * _T, f"{_NVIDIA}/a40/"),
    Peak(("a30",), 165 * _T, 82 * _T, 10.3 * _T, f"{_NVIDIA}/products/a30-gpu/"),
    Peak(("a10",), 125 * _T, 62.5 * _T, 31.2 * _T, f"{_NVIDIA}/products/a10-gpu/"),
    Peak(("l40s",), 362 * _T, 183 * _T, 91.6 * _T, f"{_NVIDIA}/l40s/"),
    Peak(("l4",), 121 * _T, 60 * _T, 30.3 * _T, f"{_NVIDIA}/l4/"),
    # SXM2, which is the faster form.
    Peak(("v100",), 125 * _T, 0.0, 15.7 * _T, f"{_NVIDIA}/v100/"),
    Peak(("t4",), 65 * _T, 0.0, 8.1 * _T, f"{_NVIDIA}/tesla-t4/"),
    Peak(("mi300x",), 1307.4 * _T, 653.7 * _T, 163.4 * _T, f"{_AMD}/mi300/mi300x.html"),
    Peak(("mi325",), 1307.4 * _T, 653.7 * _T, 163.4 * _T, f"{_AMD}/mi300/mi325x.html"),
    # A device is one of the two dies; its matrix units compute in float32 as such.
    Peak(("mi250x",), 191.5 * _T, 0.0, 47.9 * _T, f"{_AMD}/mi200/mi250x.html"),
)


def peak_of(name: str, precision: str) -> float | None:
    """Return the peak of a device, ``None`` if it is not known.

    Args:
        name: As the device calls itself.
        precision: ``"half"``, ``"tf32"`` or ``"single"``.

    Example:
        >>> peak_of("NVIDIA A100-SXM4-80GB", "half")
        312000000000000.0
    """
    words = name.lower().replace("-", " ").split()
    for peak in PEAKS:
        # By the beginnings of words: "a10" is no A100 and "l4" no L40S, but "mi250x/mi250" is one.
        if all(any(_is(word, given) for given in words) for word in peak.words):
            return float(getattr(peak, precision)) or None
    return None


def _is(word: str, given: str) -> bool:
    return given.startswith(word) and not given[len(word) :][:1].isalnum()
