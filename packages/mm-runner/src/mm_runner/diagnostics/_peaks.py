"""Peak throughput of devices, from their makers' datasheets.

Dense matrix products; makers often print the number for sparse matrices, which is twice that.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Peak", "peak_of"]


class Peak(NamedTuple):
    """Peak of one device in TFLOP/s.

    Attributes:
        words: All are part of the device's name, in lower case.
        half: Of float16 and bfloat16.
        tf32: Of float32 with matrix units; 0 where there is no such thing.
        single: Of float32 without.
    """

    words: tuple[str, ...]
    half: float
    tf32: float
    single: float


# The first that fits counts: the special before the general.
PEAKS = (
    # nvidia.com/en-us/data-center
    Peak(("b200",), 2250, 1125, 80),
    Peak(("h200",), 989.4, 494.7, 66.9),
    Peak(("h100", "pcie"), 756, 378, 51),
    Peak(("h100", "nvl"), 835, 417, 60),
    Peak(("h100",), 989.4, 494.7, 66.9),
    Peak(("a100",), 312, 156, 19.5),
    Peak(("a800",), 312, 156, 19.5),
    Peak(("a40",), 149.7, 74.8, 37.4),
    Peak(("a30",), 165, 82, 10.3),
    Peak(("a10",), 125, 62.5, 31.2),
    Peak(("l40s",), 362, 183, 91.6),
    Peak(("l4",), 121, 60, 30.3),
    Peak(("v100",), 125, 0, 15.7),
    Peak(("t4",), 65, 0, 8.1),
    # amd.com/en/products/accelerators/instinct; of an MI250X one of its two dies is a device
    Peak(("mi300x",), 1307.4, 653.7, 163.4),
    Peak(("mi325",), 1307.4, 653.7, 163.4),
    Peak(("mi250x",), 191.5, 0, 47.9),
)


def peak_of(name: str, precision: str) -> float | None:
    """Return the peak of a device in FLOP/s, ``None`` if it is not known.

    Args:
        name: The device's name, as ``torch.cuda.get_device_name`` returns it.
        precision: ``"half"``, ``"tf32"`` or ``"single"``.

    Example:
        >>> peak_of("NVIDIA A100-SXM4-80GB", "half")
        312000000000000.0
    """
    words = name.lower().replace("-", " ").split()
    for peak in PEAKS:
        if all(any(_starts_with(given, word) for given in words) for word in peak.words):
            return 1e12 * getattr(peak, precision) or None
    return None


def _starts_with(given: str, word: str) -> bool:
    # "a10" is no A100 and "l4" no L40S, but "mi250x/mi250" is an MI250X.
    return given.startswith(word) and not given[len(word) :][:1].isalnum()
