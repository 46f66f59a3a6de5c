"""What ran in which dtype: the numbers, and a table of them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

_LOW_PRECISION_BITS = 16
_OUTSIDE = "(outside modules)"


@dataclass(frozen=True)
class ModuleWork:
    """What the modules of one type did.

    Attributes:
        module_type: Name of their class; ``(outside modules)`` for what ran in none: a loss
            computed in the training loop, and sums of gradients that backward makes.
        num_modules: How many of them ran.
        calls: ``{dtype: operations}`` that computed in it, forward and backward.
        forward_flops: ``{dtype: floating-point operations}``.
        backward_flops: The same of backward.
    """

    module_type: str
    num_modules: int
    calls: Mapping[torch.dtype, int]
    forward_flops: Mapping[torch.dtype, int]
    backward_flops: Mapping[torch.dtype, int]

    @property
    def flops(self) -> Mapping[torch.dtype, int]:
        """``{dtype: floating-point operations}`` of forward and backward."""
        return Counter(self.forward_flops) + Counter(self.backward_flops)

    @property
    def low_precision_share(self) -> float:
        """The part of its work that ran in 16 bits or less, 0 to 1."""
        return _low_precision_share(self.flops)


class Tally:
    """Adds up operations while they run."""

    def __init__(self) -> None:
        self.num_casts = 0
        self._modules: dict[str, set[int]] = {}
        self._calls: dict[str, Counter[torch.dtype]] = {}
        self._forward: dict[str, Counter[torch.dtype]] = {}
        self._backward: dict[str, Counter[torch.dtype]] = {}

    def add(self, module: Any, dtype: torch.dtype, flops: int, *, is_backward: bool) -> None:
        """Count one operation of ``module``, or of none."""
        name = _OUTSIDE if module is None else _type_name(type(module))
        if name not in self._modules:
            self._modules[name] = set()
            self._calls[name], self._forward[name], self._backward[name] = (
                Counter(),
                Counter(),
                Counter(),
            )
        if module is not None:
            self._modules[name].add(id(module))
        self._calls[name][dtype] += 1
        (self._backward if is_backward else self._forward)[name][dtype] += flops

    def add_cast(self) -> None:
        """Count one cast between floating-point dtypes."""
        self.num_casts += 1

    def rows(self) -> tuple[ModuleWork, ...]:
        """Return what was counted, the type with most work first."""
        rows = [
            ModuleWork(
                name,
                len(modules),
                dict(self._calls[name]),
                dict(self._forward[name]),
                dict(self._backward[name]),
            )
            for name, modules in self._modules.items()
        ]
        return tuple(sorted(rows, key=lambda row: -sum(row.flops.values())))


def _type_name(module_type: type) -> str:
    """Return the name of the class, of a sharded module that from before ``fully_shard``."""
    bases = module_type.__bases__
    is_sharded = len(bases) > 1 and bases[0].__name__ == "FSDPModule"
    return (bases[1] if is_sharded else module_type).__name__


class AmpReceipt:
    """Which dtypes a step really computed in, by type of module; printed, a table.

    Floating-point operations are counted by formula for products, convolutions, attention and
    recurrent layers, and as one per output element otherwise. An operation's dtype is that of its
    first floating-point input. What the optimizer does is left out.
    """

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    @property
    def rows(self) -> tuple[ModuleWork, ...]:
        """One per type of module, that with most work first."""
        return self._tally.rows()

    @property
    def num_casts(self) -> int:
        """How often a tensor was cast from one floating-point dtype to another."""
        return self._tally.num_casts

    @property
    def flops(self) -> Mapping[torch.dtype, int]:
        """``{dtype: floating-point operations}`` of the whole step."""
        return sum((Counter(row.flops) for row in self.rows), Counter())

    @property
    def low_precision_share(self) -> float:
        """The part of the step's work that ran in 16 bits or less, 0 to 1."""
        return _low_precision_share(self.flops)

    def __str__(self) -> str:
        header = ("module type", "count", "dtypes that ran (operations)", "MFLOPs", "low precision")
        body = [_cells(row) for row in self.rows]
        total = sum(self.flops.values()) / 1e6
        footer = ("all", "", f"{self.num_casts} casts", f"{total:.3f}", _percent(self))
        return _table([header, *body, footer])


def _low_precision_share(flops: Mapping[torch.dtype, int]) -> float:
    total = sum(flops.values())
    low = sum(count for dtype, count in flops.items() if _num_bits(dtype) <= _LOW_PRECISION_BITS)
    return low / total if total else 0.0


def _num_bits(dtype: torch.dtype) -> int:
    return torch.empty((), dtype=dtype, device="meta").element_size() * 8


def _cells(row: ModuleWork) -> tuple[str, ...]:
    by_number = sorted(row.calls.items(), key=lambda item: -item[1])
    dtypes = ", ".join(f"{str(dtype).removeprefix('torch.')} {n}" for dtype, n in by_number)
    megaflops = f"{sum(row.flops.values()) / 1e6:.3f}"
    return row.module_type, str(row.num_modules or ""), dtypes, megaflops, _percent(row)


def _percent(work: ModuleWork | AmpReceipt) -> str:
    return f"{work.low_precision_share:.1%}" if any(work.flops.values()) else "-"


def _table(lines: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    is_text = (True, False, True, False, False)
    return "\n".join(
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, is_text, strict=True)
        ).rstrip()
        for line in lines
    )
