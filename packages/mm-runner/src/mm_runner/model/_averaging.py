"""Running averages of a model's weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from mm_runner.errors import CheckpointError, ConfigError

from ._sharded_tensors import distribute_as, local_part, shard_as, sharded_type
from ._steps import unwrap_model

__all__ = [
    "AveragedWeights",
    "ExponentialMovingAverage",
    "MomentumAnnealingEMA",
    "StochasticWeightAverage",
]

_HALF = (torch.float16, torch.bfloat16)


class AveragedWeights(ABC):
    """Averages the trainable parameters of a model over optimizer steps.

    The averages are kept beside the model, not in a copy of it. They begin as a copy at the first
    update; those of half-precision parameters are in float32, where a small change is not lost. Of
    a sharded parameter each rank averages its own part. An update copies nothing to the host.

    Args:
        model: Wrapped or not. Parameters that are frozen now are left out.
        interval: Updates between two that count. Defaults to 1.
        device: Where the averages are kept; by default where the parameters are. Another device
            costs a copy in every update.
        update_buffers: Average floating-point buffers too, and copy the others. By default the
            buffers are the model's.
        parameters: Those of ``model`` to average; by default all.

    Attributes:
        steps: Updates done; a 0-d tensor where only the device knows which steps were done.
        device: Where the averages are kept; ``None`` is where the parameters are.

    Raises:
        ConfigError: If ``interval`` is no positive integer.
    """

    def __init__(
        self,
        model: nn.Module,
        interval: int = 1,
        device: torch.device | str | None = None,
        update_buffers: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        *,
        parameters: Collection[nn.Parameter] | None = None,
    ) -> None:
        if not isinstance(interval, int) or isinstance(interval, bool) or interval < 1:
            raise ConfigError(f"interval: a positive number of updates, got {interval!r}.")
        self.interval = interval
        self.device = device
        self.steps: int | Tensor = 0
        module = unwrap_model(model)
        chosen = None if parameters is None else {id(parameter) for parameter in parameters}
        sources: dict[str, Tensor] = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad and (chosen is None or id(parameter) in chosen)
        }
        if update_buffers:
            saved = module.state_dict().keys()  # without non-persistent buffers
            sources.update((name, one) for name, one in module.named_buffers() if name in saved)
        # The names in checkpoints.
        self._sources = {name.replace("_orig_mod.", ""): one for name, one in sources.items()}
        self._averages: dict[str, Tensor] = {}
        self._own: list[Tensor] | None = None

    @abstractmethod
    def momentum_at(self, steps: Any) -> Any:
        """Return the weight of the new values after ``steps`` updates, from 0 to 1.

        Args:
            steps: A number, or a 0-d tensor, for which a tensor is returned.
        """

    @property
    def has_begun(self) -> bool:
        """Whether there is an average."""
        return bool(self._averages)

    @property
    def is_applied(self) -> bool:
        """Whether the model holds the averages at present."""
        return self._own is not None

    @torch.no_grad()
    def update(self, stepped: bool | Tensor = True) -> None:  # noqa: FBT001, FBT002
        """Move the averages towards the model's weights.

        Args:
            stepped: Whether the optimizer stepped; a 0-d tensor where only the device knows. Where
                it did not, this does nothing.
        """
        if stepped is False:
            return
        if not self._averages:
            self._begin()
            self.steps = self.steps + 1
            return
        steps: Any = self.steps
        weight: Any = 0.0
        if isinstance(stepped, Tensor):  # only the device knows which steps were done
            if not isinstance(steps, Tensor):
                steps = torch.full((), steps, dtype=torch.int64, device=stepped.device)
            counts = (steps % self.interval == 0) & stepped
            weight = torch.where(counts, self.momentum_at(steps), 0.0)
        elif steps % self.interval == 0:
            weight = self.momentum_at(steps)
        self.steps = steps + stepped
        if isinstance(weight, Tensor) or weight:
            _move(list(self._averages.values()), self._parts(), weight)

    def _begin(self) -> None:
        for name, part in zip(self._sources, self._parts(), strict=True):
            dtype = torch.float32 if part.dtype in _HALF else part.dtype
            self._averages[name] = part.detach().to(self.device, dtype, copy=True)

    def _parts(self) -> list[Tensor]:
        return [local_part(source) for source in self._sources.values()]

    @torch.no_grad()
    def apply(self) -> None:
        """Put the averages into the model; its own weights are kept until :meth:`restore`."""
        if self._own is None and self._averages:
            self._own = [part.detach().clone() for part in self._parts()]
            for part, average in zip(self._parts(), self._averages.values(), strict=True):
                part.copy_(average)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the model's own weights back. Does nothing if it holds them."""
        if self._own is not None:
            for part, own in zip(self._parts(), self._own, strict=True):
                part.copy_(own)
            self._own = None

    def full_tensors(self, *, own: bool = False) -> dict[str, Tensor]:
        """Return the averages, or the model's ``own`` weights, whole; all ranks must call this."""
        spread, sharded = self.spread_tensors(own=own), sharded_type()
        return {
            n: one.full_tensor() if isinstance(one, sharded) else one for n, one in spread.items()
        }

    def spread_tensors(self, *, own: bool = False) -> dict[str, Any]:
        """Return the same, sharded as the model's weights are."""
        parts = (self._own or self._parts()) if own else list(self._averages.values())
        named = zip(self._sources.items(), parts, strict=True)
        return {name: distribute_as(source, part.detach()) for (name, source), part in named}

    def load_full_tensors(self, averages: Mapping[str, Tensor], steps: int | Tensor) -> None:
        """Resume from averages that :meth:`full_tensors` returned; all ranks must call this.

        Raises:
            CheckpointError: If names or shapes differ.
        """
        for name, source in self._sources.items():
            given = averages.get(name)
            if not isinstance(given, Tensor) or given.shape != source.shape:
                found = tuple(given.shape) if isinstance(given, Tensor) else "nothing"
                raise CheckpointError(
                    f"The checkpoint's average of {name} is {found}; the model has "
                    f"{tuple(source.shape)}. Resume with the model that it was saved from."
                )
        self._begin()
        for name, source in self._sources.items():
            self._averages[name].copy_(shard_as(source, averages[name]))
        self.steps = int(steps)


class ExponentialMovingAverage(AveragedWeights):
    """``average = (1 - momentum) * average + momentum * weight``.

    Args:
        model: Like what is not listed here, an argument of :class:`AveragedWeights`.
        momentum: Weight of the new value. Defaults to 0.0002.

    Raises:
        ConfigError: If ``momentum`` is not between 0 and 1.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> average = ExponentialMovingAverage(model, momentum=0.25)
        >>> for value in (0.0, 4.0):
        ...     _ = nn.init.constant_(model.weight, value)
        ...     average.update()
        >>> average.full_tensors()["weight"].item()
        1.0
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float = 0.0002,
        interval: int = 1,
        device: torch.device | str | None = None,
        update_buffers: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        *,
        parameters: Collection[nn.Parameter] | None = None,
    ) -> None:
        super().__init__(model, interval, device, update_buffers, parameters=parameters)
        if not isinstance(momentum, (int, float)) or not 0 < momentum < 1:
            raise ConfigError(
                f"momentum: a number between 0 and 1, usually small, got {momentum!r}; it is the "
                "weight of the new value."
            )
        self.momentum = momentum

    @override
    def momentum_at(self, steps: Any) -> Any:
        return self.momentum


class MomentumAnnealingEMA(ExponentialMovingAverage):
    """The same with a momentum that falls: ``max(momentum, gamma / (gamma + steps))``.

    Args:
        model: Like what is not listed here, an argument of :class:`AveragedWeights`.
        momentum: The smallest. Defaults to 0.0002.
        gamma: How slowly it falls, a positive number of updates. Defaults to 100.

    Raises:
        ConfigError: If ``momentum`` or ``gamma`` is out of its range.
    """

    def __init__(
        self,
        model: nn.Module,
        momentum: float = 0.0002,
        gamma: int = 100,
        interval: int = 1,
        device: torch.device | str | None = None,
        update_buffers: bool = False,  # noqa: FBT001, FBT002 - MMEngine's signature
        *,
        parameters: Collection[nn.Parameter] | None = None,
    ) -> None:
        super().__init__(model, momentum, interval, device, update_buffers, parameters=parameters)
        if not isinstance(gamma, (int, float)) or gamma <= 0:
            raise ConfigError(f"gamma: a positive number of updates, got {gamma!r}.")
        self.gamma = gamma

    @override
    def momentum_at(self, steps: Any) -> Any:
        falling = self.gamma / (self.gamma + steps)
        if isinstance(falling, Tensor):
            return falling.clamp(min=self.momentum)
        return max(self.momentum, falling)


class StochasticWeightAverage(AveragedWeights):
    """The mean of all values that count (SWA, https://arxiv.org/abs/1803.05407).

    Args and errors are those of :class:`AveragedWeights`.
    """

    @override
    def momentum_at(self, steps: Any) -> Any:
        return 1 / (steps // self.interval + 1)


def _move(averages: list[Tensor], sources: list[Tensor], weight: float | Tensor) -> None:
    """Move each average towards its source by ``weight``; copy what is no floating point."""
    together: tuple[list[Tensor], list[Tensor]] = ([], [])
    # Not in torch 1.13; it reads a weight that is a tensor.
    lerp = None if isinstance(weight, Tensor) else getattr(torch, "_foreach_lerp_", None)
    for average, source in zip(averages, sources, strict=True):
        if not (average.is_floating_point() or average.is_complex()):
            average.copy_(source)
        elif lerp is not None and (average.dtype, average.device) == (source.dtype, source.device):
            together[0].append(average)
            together[1].append(source)
        else:
            one = weight.to(average) if isinstance(weight, Tensor) else weight
            average.lerp_(source.to(average), one)
    if lerp is not None and together[0]:
        lerp(*together, weight)
