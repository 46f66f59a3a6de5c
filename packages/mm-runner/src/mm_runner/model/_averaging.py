"""Running averages of a model's weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.registry import check_integer

from ._steps import unwrap_model

_HALF = (torch.float16, torch.bfloat16)


@dataclass(eq=False)
class AveragedWeights(ABC):
    """Averages the trainable parameters of a model over optimizer steps.

    The averages begin as a copy at the first update; those of half-precision parameters are in
    float32. Of a sharded parameter each rank averages its own part. Nothing is copied to the host.

    Args:
        model: Wrapped or not. Parameters that are frozen now are left out.
        interval: Updates between two that count. Defaults to 1.
        device: Where the averages are kept. Defaults to the device of each parameter.
        update_buffers: Average floating-point buffers too, and copy the others.

    Attributes:
        steps: Updates done; a 0-d tensor where only the device knows which steps were done.
        averages: By the names in a checkpoint; empty before the first update.
        is_applied: Whether the model holds the averages at present.

    Raises:
        ConfigError: If ``interval`` is no positive integer.
    """

    model: InitVar[nn.Module]
    interval: int = field(default=1, kw_only=True)
    device: torch.device | str | None = field(default=None, kw_only=True)
    update_buffers: bool = field(default=False, kw_only=True)

    def __post_init__(self, model: nn.Module) -> None:
        check_integer("interval", self.interval, least=1)
        self.steps: int | Tensor = 0
        self.averages: dict[str, Tensor] = {}
        self.is_applied = False
        self._own: list[Tensor] = []
        self._sources = self._sources_of(model)

    def _sources_of(self, model: nn.Module) -> dict[str, Any]:
        # With all names of a shared parameter, and without buffers that are not saved.
        return {
            name.replace("_orig_mod.", ""): one
            for name, one in unwrap_model(model).state_dict(keep_vars=True).items()
            if (one.requires_grad if isinstance(one, nn.Parameter) else self.update_buffers)
        }

    @abstractmethod
    def momentum_at(self, steps: Any) -> Any:
        """Return the weight of the new values after ``steps`` updates, from 0 to 1.

        Args:
            steps: A number, or a 0-d tensor, for which a tensor is returned.
        """

    @torch.no_grad()
    def update(self, stepped: bool | Tensor = True) -> None:  # noqa: FBT001, FBT002
        """Move the averages towards the model's weights.

        Args:
            stepped: Whether the optimizer stepped; a 0-d tensor where only the device knows. Where
                it did not, this does nothing.
        """
        if stepped is False:
            return
        if not self.averages:
            self.averages = self._copies()
            self.steps = self.steps + 1
            return
        if isinstance(stepped, Tensor) and not isinstance(self.steps, Tensor):
            self.steps = torch.full((), self.steps, dtype=torch.int64, device=stepped.device)
        counts: Any = (self.steps % self.interval == 0) * stepped
        weight = self.momentum_at(self.steps) * counts
        self.steps = self.steps + stepped
        if not isinstance(weight, Tensor) and not weight:
            return
        for average, part in zip(self.averages.values(), self._parts(), strict=True):
            if not (average.is_floating_point() or average.is_complex()):
                average.copy_(part)
                continue
            one = weight.to(average) if isinstance(weight, Tensor) else weight
            average.lerp_(part.to(average), one)

    def update_parameters(self, model: nn.Module) -> None:
        """Move the averages towards the weights of ``model``: the one averaged, or a copy of it."""
        sources = self._sources_of(model)
        self._sources = {name: sources[name] for name in self._sources}
        self.update()

    def _copies(self) -> dict[str, Tensor]:
        return {
            name: part.detach().to(
                self.device, torch.float32 if part.dtype in _HALF else part.dtype, copy=True
            )
            for name, part in zip(self._sources, self._parts(), strict=True)
        }

    def _parts(self) -> list[Tensor]:
        return [_local_part(source) for source in self._sources.values()]

    @torch.no_grad()
    def apply(self) -> None:
        """Put the averages into the model; its own weights are kept until :meth:`restore`."""
        if self.averages and not self.is_applied:
            self._own = [part.detach().clone() for part in self._parts()]
            for part, average in zip(self._parts(), self.averages.values(), strict=True):
                part.copy_(average)
            self.is_applied = True

    @torch.no_grad()
    def restore(self) -> None:
        """Put the model's own weights back. Does nothing if it holds them."""
        if self.is_applied:
            for part, own in zip(self._parts(), self._own, strict=True):
                part.copy_(own)
            self._own, self.is_applied = [], False

    def tensors(self, *, own: bool = False, whole: bool = True) -> dict[str, Any]:
        """Return the averages, or the model's ``own`` weights while averages are applied.

        Of a sharded model they are gathered, for which all ranks must call this; not ``whole``,
        they are sharded as the model's weights are.
        """
        parts = self._own if own else self.averages.values()
        found: dict[str, Any] = {}
        for (name, source), part in zip(self._sources.items(), parts, strict=True):
            one = _distribute_as(source, part)
            found[name] = one.full_tensor() if whole and one is not part else one
        return found

    def load(self, averages: Mapping[str, Tensor], steps: int | Tensor) -> None:
        """Resume from whole averages; all ranks must call this.

        Raises:
            CheckpointError: If names or shapes differ.
        """
        for name, source in self._sources.items():
            given = averages.get(name)
            found = tuple(given.shape) if isinstance(given, Tensor) else "nothing"
            if found != tuple(source.shape):
                raise CheckpointError(
                    f"The checkpoint's average of {name} is {found}; the model has "
                    f"{tuple(source.shape)}. Resume with the model that it was saved from."
                )
        self.averages = self._copies()
        for name, average in self.averages.items():
            average.copy_(_shard_as(self._sources[name], averages[name]))
        self.steps = int(steps)


@dataclass(eq=False)
class ExponentialMovingAverage(AveragedWeights):
    """``average = (1 - momentum) * average + momentum * weight``.

    Args:
        momentum: Weight of the new value, between 0 and 1. Defaults to 0.0002.
    """

    momentum: float = 0.0002

    @override
    def __post_init__(self, model: nn.Module) -> None:
        super().__post_init__(model)
        if not 0 < self.momentum < 1:
            raise ConfigError(
                "momentum: a number between 0 and 1, the weight of new values, got "
                f"{self.momentum!r}."
            )

    @override
    def momentum_at(self, steps: Any) -> Any:
        return self.momentum


@dataclass(eq=False)
class MomentumAnnealingEMA(ExponentialMovingAverage):
    """The same with a momentum that falls: ``max(momentum, gamma / (gamma + steps))``.

    Args:
        gamma: How slowly it falls, a positive number of updates. Defaults to 100.
    """

    gamma: int = 100

    @override
    def __post_init__(self, model: nn.Module) -> None:
        super().__post_init__(model)
        check_integer("gamma", self.gamma, least=1)

    @override
    def momentum_at(self, steps: Any) -> Any:
        falling = self.gamma / (self.gamma + steps)
        if isinstance(falling, Tensor):
            return falling.clamp(min=self.momentum)
        return max(self.momentum, falling)


@dataclass(eq=False)
class StochasticWeightAverage(AveragedWeights):
    """The mean of all values that count (SWA, https://arxiv.org/abs/1803.05407)."""

    @override
    def momentum_at(self, steps: Any) -> Any:
        return 1 / (steps // self.interval + 1)


def _local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor, any other as it is."""
    part: Any = getattr(tensor, "_local_tensor", None)
    return tensor if part is None else part


def _distribute_as(like: Any, part: Tensor) -> Any:
    """Return the tensor, sharded as ``like`` is, of which this rank holds ``part``."""
    if _local_part(like) is like:
        return part
    part = part.to(_local_part(like).device)
    options = {"shape": like.shape, "stride": like.stride()}
    return like.from_local(part, like.device_mesh, like.placements, run_check=False, **options)


def _shard_as(like: Any, full: Tensor) -> Tensor:
    """Return this rank's part of a full tensor, if ``like`` is sharded, else ``full``."""
    if _local_part(like) is like:
        return full
    from torch.distributed.tensor import distribute_tensor  # noqa: PLC0415 - has torch of 2.5 on

    spread: Any = full
    if hasattr(full, "full_tensor"):  # read by this rank
        return _local_part(spread.redistribute(like.device_mesh, like.placements))
    return _local_part(distribute_tensor(full.to(like.device), like.device_mesh, like.placements))
