"""Comparison of compiled with eager code in the first training calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _torch_private as torch_private
from ._config import CompileConfig
from ._errors import NumericsError
from ._failure import Failure
from ._region import Region
from ._report import Verified
from ._tensors import Named, find_tensors, map_tensors
from ._torch import describe_backend

_logger = logging.getLogger(__name__)

# Compilers fuse, so they round less often than eager code, and sum in another order. The least
# precise dtype that takes part comes first.
_TOLERANCES = {  # dtype: (rtol, atol)
    torch.bfloat16: (0.16, 1e-4),
    torch.float16: (2e-2, 1e-4),
    torch.float32: (1e-3, 1e-6),
    torch.float64: (1e-6, 1e-9),
}
# A tensor far smaller than the largest of its sort may be rounding only: the gradient of a bias
# before a normalization, for example.
_SMALL, _SMALL_IN_HALF = 0.1, 1.0
# Types of devices without a generator of their own.
_WITHOUT_NUMBERS = ("cpu", "meta", "mps")

Run = Callable[..., Any]


class Verifier:
    """Calls regions on copies of their inputs, eagerly and compiled, before the real call.

    Both calls begin with the same random numbers and buffers, which are restored afterwards. The
    gradients do not reach ``.grad``.
    """

    def __init__(self, config: CompileConfig) -> None:
        assert config.verify is not None
        self._raises = config.on_error == "raise"
        self._verify = config.verify
        options = config.keywords.get("options", {})
        is_inductor = describe_backend(config.keywords) == "inductor"
        self._draws_own_numbers = is_inductor and not options.get("fallback_random")
        self.results: dict[Region, Verified] = {}

    def check(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Failure | None:
        """Compare a training call of a region with ``run``, its compiled code.

        Removes the region's ``check`` after the last comparison.
        """
        found = self._compare(region, run, args, kwargs)
        known = self.results.get(region, Verified())
        if found is None:
            return None
        num_calls = known.num_calls + (found.note is None)
        is_worse = known.tensor is None or found.note or found.ratio > known.ratio
        self.results[region] = replace(found if is_worse else known, num_calls=num_calls)
        if found.note is not None:
            _logger.warning("compile: %s cannot be verified: %s.", region.label, found.note)
        if found.note is not None or num_calls >= self._verify.steps:
            region.check = None
        return None if found.ratio <= 1 else self._refuse(region, found)

    def _compare(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Verified | None:
        module = region.module
        tensors = (*module.parameters(), *module.buffers())
        if not torch.is_grad_enabled() or any(map(is_lazy, tensors)):
            return None
        if _holds_shards(module):
            return Verified(note="it holds sharded modules; verify them one by one by regions")
        is_enabled = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # the step would use weights converted here
        try:
            eager = _Trace(region.__wrapped__, module, args, kwargs)
        finally:
            torch.set_autocast_cache_enabled(is_enabled)
        if eager.draws and self._draws_own_numbers:
            return Verified(
                note="inductor draws other random numbers than eager code; with "
                "options={'fallback_random': True} it draws the same"
            )
        compiled = _Trace(run, module, args, kwargs)
        if region.failure is not None:  # it did not compile, which is logged
            return None
        if eager.draws and not all(map(torch.equal, eager.random, compiled.random)):
            return Verified(note="its compiled code draws other random numbers")
        return self._worst(eager, compiled) or Verified(note="it has no outputs to compare")

    def _worst(self, eager: _Trace, compiled: _Trace) -> Verified | None:
        """Return the largest deviation of an element beyond ``atol + rtol * scale``.

        The scale is the tensor's largest element, or a part of the largest of all outputs or
        gradients if that is more.
        """
        rtol, atol = _TOLERANCES[eager.dtype]
        rtol = rtol if self._verify.rtol is None else self._verify.rtol
        atol = atol if self._verify.atol is None else self._verify.atol
        found = []
        for tensors, others in zip(eager.results, compiled.results, strict=True):
            scales = {name: _largest(tensor) for name, tensor in tensors}
            small = _SMALL_IN_HALF if eager.dtype.itemsize == 2 else _SMALL
            floor = small * max(scales.values(), default=0.0)
            for name, tensor in tensors:
                allowed = atol + rtol * max(scales[name], floor)
                deviation = _difference(tensor, dict(others).get(name))
                found.append(Verified(1, name, deviation, allowed))
        return max(found, key=lambda each: each.ratio, default=None)

    def _refuse(self, region: Region, worst: Verified) -> Failure:
        reason = f"verify: {worst} (compiled against eager)"
        if self._raises:
            raise NumericsError(
                f"compile: {region.label} computes something else compiled: {reason}. Set "
                'on_error="eager" to train on with this region uncompiled, or, if that is '
                "rounding, raise rtol or atol in verify."
            )
        return Failure(reason)


class _Trace:
    """Outputs and gradients of a call on copies of its inputs.

    Backward begins with ones of random sign, the same in every call: the sum of an output may be
    constant, as behind a normalization. Buffers and random numbers are restored.
    """

    def __init__(
        self, run: Run, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._leaves: list[Named] = []
        args, kwargs = (map_tensors(self._copy, "inputs", each) for each in (args, kwargs))
        device = next((each.device for each in module.parameters()), torch.device("cpu"))
        kind = device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        before = _random_states(device)
        with _restored(module, device):
            # Checkpointing counts what a forward saves, and must not see this one.
            with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
                outputs = find_tensors("the output", run(*args, **kwargs))
            self.random = _random_states(device)
            # As in a training step, whose backward runs after autocast has ended.
            with torch.autocast(kind, enabled=False) if dtype else nullcontext():
                gradients = self._backward(module, outputs)
        self.draws = not all(map(torch.equal, before, self.random))
        self.results = ([(name, each.detach()) for name, each in outputs], gradients)
        dtypes = [dtype, *(each.dtype for named in self.results for _, each in named)]
        self.dtype = next((each for each in _TOLERANCES if each in dtypes), torch.float32)

    def _backward(self, module: nn.Module, outputs: list[Named]) -> list[Named]:
        named = module.named_parameters()
        targets = [*((repr(name), p) for name, p in named if p.requires_grad), *self._leaves]
        sources = [each for _, each in outputs if each.requires_grad]
        if not sources or not targets:
            return []
        tensors = [target for _, target in targets]
        signs = list(map(_signs, sources))
        found = torch.autograd.grad(sources, tensors, signs, allow_unused=True)
        return [
            (f"the gradient of {name}", torch.zeros_like(target) if each is None else each)
            for (name, target), each in zip(targets, found, strict=True)
        ]

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        copied = tensor.detach().clone()
        if not tensor.requires_grad:
            return copied
        leaf = copied.requires_grad_()
        self._leaves.append((name, leaf))
        # A leaf cannot be changed in place, a result can.
        return leaf if tensor.is_leaf else leaf.clone()


def _signs(tensor: Tensor) -> Tensor:
    if type(tensor) is not Tensor:  # distributed, for example
        return torch.ones_like(tensor)
    generator = torch.Generator().manual_seed(tensor.numel())
    signs = torch.randint(0, 2, tensor.shape, generator=generator) * 2 - 1
    return signs.to(tensor.device, tensor.dtype)


@contextmanager
def _restored(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore buffers and torch's random numbers afterwards."""
    values = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    tables = [(table, dict(table)) for table in torch_private.buffer_tables(module)]
    has_numbers = device.type not in _WITHOUT_NUMBERS
    devices, kind = ([device.index or 0], device.type) if has_numbers else ([], "cuda")
    with torch.random.fork_rng(devices, device_type=kind):
        try:
            yield
        finally:
            for table, buffers in tables:
                table.update(buffers)
            for buffer, value in values:
                # An earlier forward of the step may have saved the buffer for its backward.
                with torch.no_grad(), torch_private.preserved_version(buffer):
                    buffer.copy_(value)


def _random_states(device: torch.device) -> list[Tensor]:
    has_numbers = device.type not in _WITHOUT_NUMBERS
    own = [getattr(torch, device.type).get_rng_state(device)] if has_numbers else []
    return [torch.get_rng_state(), *own]


def _largest(tensor: Tensor) -> float:
    if not tensor.numel() or not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    return float(torch.nan_to_num(tensor.abs().double(), nan=0.0, posinf=0.0).max())


def _difference(eager: Tensor, compiled: Tensor | None) -> float:
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return float("inf")
    if not eager.numel():
        return 0.0
    is_same = torch.isclose(eager, compiled, rtol=0, atol=0, equal_nan=True)
    exact = torch.complex128 if eager.is_complex() else torch.float64
    deviations = (eager.to(exact) - compiled.to(exact)).abs().masked_fill(is_same, 0.0)
    return float(torch.nan_to_num(deviations, nan=float("inf")).max())


def _holds_shards(module: nn.Module) -> bool:
    # Their hooks gather and scatter in every forward and backward.
    inner = [type(part) for part in module.modules() if part is not module]
    names = {base.__name__ for kind in inner for base in kind.__mro__}
    return not names.isdisjoint({"FSDPModule", "FullyShardedDataParallel"})
