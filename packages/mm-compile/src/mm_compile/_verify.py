"""Comparison of compiled with eager code in the first training calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _torch_private as torch_private
from ._compiled_code import CompiledCode
from ._config import CompileConfig
from ._errors import NumericsError
from ._failure import Failure
from ._region import Region
from ._tensors import Named, find_tensors, map_tensors
from ._torch import describe_backend

_logger = logging.getLogger(__name__)

# Compilers fuse, so they round less often than eager code, and sum in another order. By the least
# precise dtype that takes part.
_TOLERANCES = {  # dtype: (rtol, atol)
    torch.float64: (1e-6, 1e-9),
    torch.float32: (1e-3, 1e-6),
    torch.float16: (2e-2, 1e-4),
    torch.bfloat16: (0.16, 1e-4),
}
_ORDER = list(_TOLERANCES)
# A tensor far smaller than the largest of its sort may be rounding only: the gradient of a bias
# before a normalization, for example.
_SMALL = 0.1
# Compiled code may deviate by so many times the change of eager code for inputs moved by rounding.
_ROUNDING_FACTOR = 5.0

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]


@dataclass(frozen=True)
class Verified:
    """How a region's compiled code compared with its eager code.

    Attributes:
        num_calls: Training calls compared.
        tensor: The tensor that deviated most, relative to what is allowed; None if none was
            compared.
        deviation: The largest difference of one of its elements.
        allowed: The difference that ``rtol`` and ``atol`` allow.
        note: Why calls were not compared; else None.
    """

    num_calls: int = 0
    tensor: str | None = None
    deviation: float = 0.0
    allowed: float = 0.0
    note: str | None = None

    @property
    def ratio(self) -> float:
        """The deviation relative to what is allowed."""
        return (
            self.deviation / self.allowed if self.allowed else float("inf") * bool(self.deviation)
        )


class Verifier:
    """Calls regions on copies of their inputs, eagerly and compiled, before the real call.

    Both calls begin with the same random numbers and buffers, which are restored afterwards. The
    gradients do not reach ``.grad``.

    Args:
        config: The checked config, with ``verify``.

    Attributes:
        results: Results by the region's index.
        num_comparisons: Calls compared so far.
    """

    def __init__(self, config: CompileConfig) -> None:
        assert config.verify is not None
        self._raises = config.on_error == "raise"
        self._verify = config.verify
        self._is_inductor = describe_backend(config.keywords) == "inductor"
        self._errors = torch_private.dynamo_errors()
        self._separate_codes: dict[int, CompiledCode] = {}
        self.results: dict[int, Verified] = {}
        self.num_comparisons = 0

    def check(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Failure | None:
        """Compare one training call of a region.

        Args:
            region: The region; its ``check`` is removed after the last comparison.
            run: Its compiled code.
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.

        Returns:
            What deviates by more than allowed, or None.

        Raises:
            NumericsError: If something does, under ``on_error="raise"``.
        """
        module = region.module
        if not torch.is_grad_enabled() or _is_uninitialized(module):
            return None
        if _holds_shards(module):
            self._skip(region, "it holds sharded modules; verify them one by one by regions")
            return None
        self.num_comparisons += 1
        found = self._compare(region, run, args, kwargs)
        if found is None:
            return None
        known = self.results.get(region.index, Verified())
        worst = max(found, known, key=lambda each: each.ratio) if known.tensor else found
        num_calls = known.num_calls + 1
        self.results[region.index] = Verified(
            num_calls, worst.tensor, worst.deviation, worst.allowed
        )
        if num_calls >= self._verify.steps:
            region.check = None
        return None if found.deviation <= found.allowed else self._refuse(region, found)

    def _compare(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Verified | None:
        def trace(run: Run, size: float = 0.0) -> _Trace:
            with _restored(region.module):
                return _Trace(run, region.module, (args, kwargs), size)

        def run_eager(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return region.__wrapped__(*args, **kwargs)

        with _without_autocast_cache():
            eager = trace(run_eager)
        is_separate = eager.draws and self._is_inductor
        try:
            # Inductor draws its own random numbers: the same code is compiled with torch's.
            with torch_private.inductor_with_eager_random() if is_separate else nullcontext():
                compiled = trace(self._separate_run(region) if is_separate else run)
        except Exception as error:
            if not (is_separate and torch_private.is_of_dynamo(error, self._errors)):
                raise
            self._skip(region, "its code does not compile with torch's random numbers")
            return None
        if region.failure is not None:  # it did not compile, which is logged
            return None
        if eager.draws and not all(map(torch.equal, eager.random, compiled.random)):
            self._skip(region, "its compiled code draws other random numbers than eager code")
            return None
        found = self._worst(eager, compiled)
        if found is None:
            self._skip(region, "it has no outputs to compare")
        elif not found.deviation <= found.allowed:
            with _without_autocast_cache():
                moved = trace(run_eager, torch.finfo(eager.dtype).eps)
            found = self._worst(eager, compiled, moved)
        return found

    def _separate_run(self, region: Region) -> Run:
        key = id(region.kind.function)
        if key not in self._separate_codes:
            self._separate_codes[key] = region.kind.separate_code()
        code = self._separate_codes[key]

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return code.run(region.module, *args, **kwargs)
            finally:
                code.end_hook_guards()

        return run

    def _worst(
        self, eager: _Trace, compiled: _Trace, moved: _Trace | None = None
    ) -> Verified | None:
        """Return the largest deviation of an element beyond ``atol + rtol * scale``.

        The scale is the tensor's largest element, or a tenth of the largest of all outputs or
        gradients if that is more.
        """
        rtol, atol = _TOLERANCES.get(eager.dtype, _TOLERANCES[torch.bfloat16])
        rtol = rtol if self._verify.rtol is None else self._verify.rtol
        atol = atol if self._verify.atol is None else self._verify.atol
        found = []
        for sort in ("outputs", "gradients"):
            others = dict(getattr(compiled, sort))
            moveds = {} if moved is None else dict(getattr(moved, sort))
            scales = {name: _largest(tensor) for name, tensor in getattr(eager, sort)}
            floor = _SMALL * max(scales.values(), default=0.0)
            for name, tensor in getattr(eager, sort):
                rounding = _ROUNDING_FACTOR * _difference(tensor, moveds.get(name, tensor))
                allowed = max(atol + rtol * max(scales[name], floor), rounding)
                deviation = _difference(tensor, others.get(name))
                found.append(Verified(1, name, deviation, allowed))
        return max(found, key=lambda each: each.ratio, default=None)

    def _skip(self, region: Region, note: str) -> None:
        region.check = None
        num_calls = self.results.get(region.index, Verified()).num_calls
        self.results[region.index] = Verified(num_calls, note=note)
        _logger.warning("compile: %s cannot be verified: %s.", region.label, note)

    def _refuse(self, region: Region, worst: Verified) -> Failure:
        deviation = f"{worst.tensor} deviates by {worst.deviation:.2g}, {worst.allowed:.2g} allowed"
        reason = f"verify: {deviation} (compiled against eager)"
        if self._raises:
            raise NumericsError(
                f"compile: {region.label} computes something else compiled: {reason}. Set "
                'on_error="eager" to train on with this region uncompiled, or, if that is '
                "rounding, raise rtol or atol in verify.",
                region.name,
                str(worst.tensor),
                worst.deviation,
            )
        return Failure(reason)


class _Trace:
    """Outputs and gradients of a call on copies of its inputs.

    Backward begins with ones of random sign, the same in every call: the sum of an output may be
    constant, as behind a normalization. Inputs and signs are moved by ``size``, relative.
    """

    def __init__(
        self,
        run: Run,
        module: nn.Module,
        inputs: tuple[tuple[Any, ...], dict[str, Any]],
        size: float,
    ) -> None:
        self._size = size
        self._generator = torch.Generator().manual_seed(0)
        self._leaves: list[Named] = []
        self._copies: dict[int, Tensor] = {}
        args, kwargs = (map_tensors(self._copy, "inputs", each) for each in inputs)
        # Checkpointing counts what a forward saves, and must not see this one.
        hooks = torch.autograd.graph.saved_tensors_hooks(_same, _same)
        before = _random_states(module)
        with hooks:
            outputs = list(find_tensors("the output", run(args, kwargs)))
        self.random = _random_states(module)
        self.draws = not all(map(torch.equal, before, self.random))
        autocast = _autocast(module)
        # As in a training step, whose backward runs after autocast has ended.
        with nullcontext() if autocast is None else torch.autocast(autocast[0], enabled=False):
            self.gradients = self._backward(module, outputs)
        self.outputs = [(name, each.detach()) for name, each in outputs]
        tensors = [tensor for _, tensor in (*self.outputs, *self.gradients)]
        self.dtype = _least_precise(tensors, None if autocast is None else autocast[1])

    def _backward(self, module: nn.Module, outputs: list[Named]) -> list[Named]:
        named = module.named_parameters()
        targets = [*((repr(name), p) for name, p in named if p.requires_grad), *self._leaves]
        sources = [each for _, each in outputs if each.requires_grad]
        if not sources or not targets:
            return []
        self._generator.manual_seed(0)
        signs = [self._signs(each) for each in sources]
        tensors = [target for _, target in targets]
        found = torch.autograd.grad(
            sources, tensors, list(map(self._move, signs)), allow_unused=True
        )
        return [
            (f"the gradient of {name}", torch.zeros_like(target) if each is None else each)
            for (name, target), each in zip(targets, found, strict=True)
        ]

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._copies:
            copied = self._move(tensor.detach()).clone()
            if tensor.requires_grad:
                leaf = copied.requires_grad_()
                self._leaves.append((name, leaf))
                # A leaf cannot be changed in place, a result can.
                copied = leaf if tensor.is_leaf else leaf.clone()
            # Dimensions that the user has marked as dynamic, for example.
            marks = {key: mark for key, mark in vars(tensor).items() if key.startswith("_dynamo")}
            vars(copied).update(marks)
            self._copies[id(tensor)] = copied
        return self._copies[id(tensor)]

    def _move(self, tensor: Tensor) -> Tensor:
        if not self._size or not tensor.is_floating_point():
            return tensor
        return (tensor * (1 + self._size * self._signs(tensor))).to(tensor.dtype)

    def _signs(self, tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor:  # distributed, for example
            return torch.ones_like(tensor)
        signs = torch.randint(0, 2, tensor.shape, generator=self._generator) * 2 - 1
        return signs.to(tensor.device, tensor.dtype)


@contextmanager
def _restored(module: nn.Module) -> Iterator[None]:
    """Restore buffers and torch's random numbers afterwards."""
    values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    tables = [(part._buffers, dict(part._buffers)) for part in module.modules()]  # noqa: SLF001
    devices = _devices_of(module)
    kind = devices[0].type if devices else "cuda"
    try:
        with torch.random.fork_rng([each.index or 0 for each in devices], device_type=kind):
            yield
    finally:
        for table, buffers in tables:
            if any(table.get(name) is not buffer for name, buffer in buffers.items()):
                table.update(buffers)
        with torch.no_grad():
            for buffer, value in values:
                # An earlier forward of the step may have saved the buffer for its backward.
                with torch_private.preserved_version(buffer):
                    buffer.copy_(value)


def _devices_of(module: nn.Module) -> list[torch.device]:
    """Return the devices with random numbers, the CPU excepted."""
    tensors = (*module.parameters(), *module.buffers())
    found = {each.device for each in tensors if each.device.type not in ("cpu", "meta", "mps")}
    return sorted(found, key=str)


def _random_states(module: nn.Module) -> list[Tensor]:
    devices = _devices_of(module)
    states = [getattr(torch, each.type).get_rng_state(each) for each in devices]
    return [torch.get_rng_state(), *states]


def _same(value: Any) -> Any:
    return value


def _autocast(module: nn.Module) -> tuple[str, torch.dtype] | None:
    """Return device type and dtype of the autocast that is on for the module's device."""
    tensor = next(module.parameters(), None)
    kind = "cpu" if tensor is None else tensor.device.type
    return (kind, torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else None


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    # Otherwise weights converted here would be reused by the training step.
    is_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(is_enabled)


def _least_precise(tensors: Sequence[Tensor], autocast: torch.dtype | None) -> torch.dtype:
    present = {each.dtype for each in tensors if each.is_floating_point()}
    present |= {autocast} if autocast is not None else set()
    others = present.difference(_ORDER)
    if others:
        return next(iter(others))
    dtype = max(present or {torch.float32}, key=_ORDER.index)
    # TensorFloat-32 keeps as many digits of factors as float16 does.
    uses_tf32 = torch.get_float32_matmul_precision() != "highest" or torch.backends.cudnn.allow_tf32
    is_on_cuda = any(each.device.type == "cuda" for each in tensors)
    return torch.float16 if dtype == torch.float32 and is_on_cuda and uses_tf32 else dtype


def _largest(tensor: Tensor) -> float:
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(torch.nan_to_num(_precise(tensor).abs(), nan=0.0, posinf=0.0).max())


def _difference(eager: Tensor, compiled: Tensor | None) -> float:
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return float("inf")
    if not eager.numel():
        return 0.0
    first, second = (_precise(each.detach()) for each in (eager, compiled))
    is_same = (first == second) | (torch.isnan(first) & torch.isnan(second))
    largest = float((first - second).abs().masked_fill(is_same, 0.0).max())
    return float("inf") if largest != largest else largest  # noqa: PLR0124 - NaN


def _precise(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() or tensor.dtype == torch.float64 else tensor.float()


def _is_uninitialized(module: nn.Module) -> bool:
    return any(map(is_lazy, (*module.parameters(), *module.buffers())))


def _holds_shards(module: nn.Module) -> bool:
    # Their hooks gather and scatter in every forward and backward.
    return any(
        base.__name__ in {"FSDPModule", "FullyShardedDataParallel"}
        for part in module.modules()
        if part is not module
        for base in type(part).__mro__
    )
