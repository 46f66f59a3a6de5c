"""Compares what compiled code computes with what eager code does, in the first training calls."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from mm_compile._config import CompileConfig
from mm_compile._errors import NumericsError
from mm_compile._failure import Failure
from mm_compile._region import Region
from mm_compile._torch import describe_backend, dynamo_errors, is_of_dynamo
from mm_compile._unit import Unit

from ._compare import Deviation, Verified, compare, least_precise
from ._run import (
    Run,
    Trace,
    active_autocast,
    holds_shards,
    is_uninitialized,
    trace,
    without_autocast_cache,
)
from ._state import SavedState

_logger = logging.getLogger(__name__)


class Verifier:
    """Calls regions on copies of their inputs, eagerly and compiled, before they are really run.

    Both calls begin with the same random numbers, buffers and attributes, which are put back
    afterwards; gradients are taken of the copies, so that those of the parameters, and whoever
    waits for them, know nothing of it. The real call is then as if there had been no other.

    Args:
        config: The checked config; its ``verify`` is not None.
        num_regions: How many regions it is going to check.
    """

    def __init__(self, config: CompileConfig, num_regions: int) -> None:
        assert config.verify is not None
        self._config = config
        self._verify = config.verify
        self._is_inductor = describe_backend(config.keywords) == "inductor"
        self._num_regions = num_regions
        self._twins: dict[int, Unit] = {}
        self.results: dict[int, Verified] = {}
        self.num_comparisons = 0

    def check(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Failure | None:
        """Compare one call of a region, if it trains.

        Args:
            region: The region; it leaves the verifier after its last comparison.
            run: Its compiled code.
            args: The call's positional arguments.
            kwargs: The call's keyword arguments.

        Returns:
            What deviates beyond tolerance; None if nothing does.

        Raises:
            NumericsError: If something does, and the config says ``on_error="raise"``.
        """
        if not torch.is_grad_enabled():
            return None
        module = region.module
        if is_uninitialized(module):  # its parameters are made in this call
            return None
        if holds_shards(module):
            self._leave(region, "it holds sharded modules; verify them one by one by regions")
            return None
        self.num_comparisons += 1
        deviations = self._compare(region, run, args, kwargs)
        if deviations:
            self._remember(region, max(deviations, key=lambda each: each.ratio))
        elif region.failure is None and region.check is not None:
            self._leave(region, "it has no outputs to compare")
        beyond = [each for each in deviations if each.is_beyond]
        return self._refuse(region, max(beyond, key=lambda each: each.ratio)) if beyond else None

    def _compare(
        self, region: Region, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Deviation]:
        state = SavedState(region.module)

        def call_eagerly(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return region.__wrapped__(*args, **kwargs)

        try:
            with without_autocast_cache():
                eager = trace(call_eagerly, region, args, kwargs, state)
            state.restore()
            draws = state.random_changed(eager.random)
            if draws and self._is_inductor:
                compiled = self._trace_twin(region, args, kwargs, state)
            else:
                compiled = trace(run, region, args, kwargs, state)
            if not self._is_comparable(region, eager, compiled if draws else eager):
                return []
            assert compiled is not None
            dtype = _precision_of(region.module, eager)
            deviations = self._deviations(eager, compiled, dtype)
            if any(each.is_beyond for each in deviations):
                state.restore()
                size = torch.finfo(dtype).eps
                shaken = trace(call_eagerly, region, args, kwargs, state, size)
                deviations = self._deviations(eager, compiled, dtype, shaken)
        finally:
            state.restore()
        return deviations

    def _is_comparable(self, region: Region, eager: Trace, compiled: Trace | None) -> bool:
        if region.failure is not None:
            return False  # it does not compile: the region has said so
        if compiled is None:
            self._leave(region, "its code does not compile with eager random numbers")
        elif not compiled.drew_like(eager):
            self._leave(region, "its compiled code draws other random numbers than eager code")
        return region.check is not None

    def _trace_twin(
        self, region: Region, args: tuple[Any, ...], kwargs: dict[str, Any], state: SavedState
    ) -> Trace | None:
        # Inductor has random numbers of its own. So that dropout can be compared at all, the same
        # code is compiled once more with eager ones; what trains is left as it is.
        from torch._inductor import config as inductor  # noqa: PLC0415 - loaded only to compile

        twin = self._twin_of(region)

        def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return twin.run(region.module, *args, **kwargs)
            finally:
                if twin.hook_guards.is_begun:
                    twin.hook_guards.end()

        with inductor.patch(fallback_random=True):
            try:
                return trace(run, region, args, kwargs, state)
            except Exception as error:
                if not is_of_dynamo(error, dynamo_errors()):
                    raise
                return None

    def _twin_of(self, region: Region) -> Unit:
        key = id(region.kind.function)
        if key not in self._twins:
            self._twins[key] = region.kind.twin()
        return self._twins[key]

    def _deviations(
        self, eager: Trace, compiled: Trace, dtype: torch.dtype, shaken: Trace | None = None
    ) -> list[Deviation]:
        outputs, gradients = ((), ()) if shaken is None else (shaken.outputs, shaken.gradients)
        return [
            *compare(eager.outputs, compiled.outputs, dtype, self._verify, outputs),
            *compare(eager.gradients, compiled.gradients, dtype, self._verify, gradients),
        ]

    def _remember(self, region: Region, worst: Deviation) -> None:
        known = self.results.get(region.index, Verified())
        is_worse = known.tensor is None or worst.ratio > known.deviation / (known.allowed or 1.0)
        shown = worst if is_worse else Deviation(known.tensor or "", known.deviation, known.allowed)
        self.results[region.index] = Verified(
            known.num_calls + 1, shown.tensor, shown.value, shown.allowed
        )
        if known.num_calls + 1 >= self._verify.steps:
            self._release(region)

    def _leave(self, region: Region, note: str) -> None:
        self._release(region)
        known = self.results.get(region.index, Verified())
        self.results[region.index] = Verified(known.num_calls, note=note)
        _logger.warning("compile: %s cannot be verified: %s.", region.label, note)

    def _release(self, region: Region) -> None:
        region.check = None
        self._num_regions -= 1
        if not self._num_regions:
            self._twins.clear()

    def _refuse(self, region: Region, worst: Deviation) -> Failure:
        reason = f"verify: {worst} (compiled against eager)"
        if self._config.on_error == "raise":
            raise NumericsError(
                f"compile: {region.label} computes something else compiled: {reason}. Set "
                'on_error="eager" to train on with this region uncompiled, or, if that is '
                "rounding, raise rtol or atol in verify.",
                region.name,
                worst.tensor,
                worst.value,
            )
        return Failure(reason)


def _precision_of(module: nn.Module, eager: Trace) -> torch.dtype:
    autocast = active_autocast(module)
    tensors = [tensor for _, tensor in (*eager.outputs, *eager.gradients)]
    return least_precise(tensors, None if autocast is None else autocast[1])
