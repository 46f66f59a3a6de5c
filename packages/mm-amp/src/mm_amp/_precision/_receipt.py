"""Receipt of a step: the dtypes it really computed in, and how much of the work ran in each."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from mm_amp._errors import ConfigTypeError, TorchVersionError
from mm_amp._precision._nested import tensors_in

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # without it there is no receipt
    _DispatchMode: Any = object
else:
    _DispatchMode = TorchDispatchMode
_OUTSIDE = "(outside modules)"
# They move or make data. Views are left out too, casts are counted apart.
_NO_COMPUTATION = frozenset(
    f"aten::{name}"
    for name in (
        "clone", "copy_", "detach", "empty_like", "fill_", "full_like", "new_empty",
        "new_empty_strided", "new_zeros", "ones_like", "set_", "zero_", "zeros_like",
    )
)  # fmt: skip


class ModuleWork(NamedTuple):
    """Work of the modules of one type.

    Attributes:
        module_type: Name of their class, or ``(outside modules)``.
        num_modules: Number of them that ran.
        calls: ``{dtype: operations}`` that computed in it, forward and backward.
        flops: ``{dtype: floating-point operations}``, forward and backward.
    """

    module_type: str
    num_modules: int
    calls: Mapping[torch.dtype, int]
    flops: Mapping[torch.dtype, int]

    @property
    def low_precision_share(self) -> float:
        """The part of the floating-point operations that ran in 16 bits or less, 0 to 1."""
        total = sum(self.flops.values())
        low = sum(number for dtype, number in self.flops.items() if dtype.itemsize <= 2)
        return low / total if total else 0.0


class AmpReceipt:
    """Dtypes that a step computed in, by type of module; prints as a table.

    Floating-point operations are those of torch's ``FlopCounterMode``: products, convolutions and
    attention. The dtype of an operation is that of its first floating-point input.

    Attributes:
        num_casts: Number of casts from one floating-point dtype to another.
    """

    def __init__(self) -> None:
        self.num_casts = 0
        self.modules: defaultdict[str, set[str]] = defaultdict(set)
        self.calls: defaultdict[str, Counter[torch.dtype]] = defaultdict(Counter)
        self.work: defaultdict[str, Counter[torch.dtype]] = defaultdict(Counter)

    @property
    def rows(self) -> tuple[ModuleWork, ...]:
        """One row per type of module, that with most work first."""
        rows = [
            ModuleWork(name, len(self.modules[name]), dict(calls), dict(self.work[name]))
            for name, calls in self.calls.items()
        ]
        return tuple(sorted(rows, key=lambda row: -sum(row.flops.values())))

    @property
    def flops(self) -> Mapping[torch.dtype, int]:
        """``{dtype: floating-point operations}`` of the whole step."""
        return sum(self.work.values(), Counter())

    @property
    def low_precision_share(self) -> float:
        """The part of the floating-point operations that ran in 16 bits or less, 0 to 1."""
        return ModuleWork("all", 0, {}, self.flops).low_precision_share

    def __str__(self) -> str:
        lines = [
            ("module type", "count", "dtypes that ran (operations)", "MFLOPs", "low precision")
        ]
        for row in (*self.rows, ModuleWork("all", 0, {}, self.flops)):
            by_number = sorted(row.calls.items(), key=lambda item: -item[1])
            dtypes = ", ".join(f"{str(dtype).removeprefix('torch.')} {n}" for dtype, n in by_number)
            if not row.calls:
                dtypes = f"{self.num_casts} casts"
            total = sum(row.flops.values())
            share = f"{row.low_precision_share:.1%}" if total else "-"
            count = str(row.num_modules or "")
            lines.append((row.module_type, count, dtypes, f"{total / 1e6:.3f}", share))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            f"{a:{w[0]}}  {b:>{w[1]}}  {c:{w[2]}}  {d:>{w[3]}}  {e:>{w[4]}}".rstrip()
            for (a, b, c, d, e), w in ((line, widths) for line in lines)
        )


def amp_receipt(model: nn.Module) -> AbstractContextManager[AmpReceipt]:
    """Record the dtypes that a step computes in, and how much of the work ran in each.

    Such a step is slow; its results are the same. A compiled model runs eagerly meanwhile. An
    operation belongs to the innermost module that runs, one of backward to that of its forward.

    Args:
        model: The model, wrapped or not.

    Returns:
        A context manager for one step. It gives an ``AmpReceipt``, complete when the step ends.

    Raises:
        ConfigTypeError: If ``model`` is no module.
        TorchVersionError: Before torch 2.6.

    Example:
        >>> model = torch.nn.Linear(100, 100)
        >>> with amp_receipt(model) as receipt, autocast("cpu", "bfloat16"):
        ...     output = model(torch.ones(50, 100))
        >>> print(receipt)
        module type  count  dtypes that ran (operations)  MFLOPs  low precision
        Linear           1  bfloat16 1                     1.000         100.0%
        all                 3 casts                        1.000         100.0%
    """
    if not isinstance(model, nn.Module):
        raise ConfigTypeError(
            f"model is a {type(model).__name__}; a receipt needs the torch.nn.Module that runs."
        )
    if not hasattr(getattr(torch, "compiler", None), "set_stance") or _DispatchMode is object:
        raise TorchVersionError(
            f"a receipt was asked for, which torch {torch.__version__} cannot make; use torch 2.6 "
            "or newer."
        )
    return _record(model)


@contextmanager
def _record(model: nn.Module) -> Iterator[AmpReceipt]:
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 - slow, and new

    counter, receipt = FlopCounterMode(display=False), AmpReceipt()
    with torch.compiler.set_stance("force_eager"), counter, _Recorder(model, counter, receipt):
        yield receipt


class _Recorder(_DispatchMode):  # type: ignore[misc]
    """Adds each operation, with the flops that torch's counter finds, to a receipt."""

    def __init__(self, model: nn.Module, counter: Any, receipt: AmpReceipt) -> None:
        super().__init__()
        self._counter = counter
        self._receipt = receipt
        # torch's tracker names a module by the class of the outermost one called, and a path.
        self._types: dict[str, str] = {}
        for root in model.modules():
            for path, module in root.named_modules():
                name = ".".join(filter(None, (type(root).__name__, path)))
                self._types.setdefault(name, type(module).__name__)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._counter.get_total_flops()
        output = func(*args, **(kwargs or {}))
        tracker, receipt = self._counter.mod_tracker, self._receipt
        running = tracker.parents - {"Global"}
        if not running and not tracker.is_bw and not torch.is_grad_enabled():
            return output  # the optimizer and the loss scaler
        operation = func.name().partition(".")[0]
        dtype = next((one.dtype for one in tensors_in(args) if one.is_floating_point()), None)
        if operation == "aten::_to_copy":
            receipt.num_casts += dtype is not None and output.dtype != dtype
        elif (
            dtype is not None
            and operation.startswith("aten::")
            and operation not in _NO_COMPUTATION
            and not func.is_view
        ):
            name = max(running, key=lambda one: one.count("."), default="")
            module_type = self._types.get(name, name) or _OUTSIDE
            if name:
                receipt.modules[module_type].add(name)
            receipt.calls[module_type][dtype] += 1
            receipt.work[module_type][dtype] += self._counter.get_total_flops() - before
        return output
