"""Base classes of models and of data preprocessors: the interface to the loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self, override

from mm_runner.data import map_tensors
from mm_runner.errors import ConfigError, ModelOutputError
from mm_runner.registry import MODELS, build_from_cfg, short_repr

from ._steps import run_forward, run_train_step


class BaseDataPreprocessor(nn.Module):
    """Moves every tensor of a batch to the device this module was moved to.

    Objects with ``to`` and ``cpu``, such as data samples and graphs, are moved too.

    Subclass it to normalize or pad: override :meth:`forward` and call :meth:`cast_data`.

    Args:
        non_blocking: Let copies from pinned memory overlap with computation.

    Example:
        >>> BaseDataPreprocessor()({"x": [torch.ones(2)], "name": "a"})
        {'x': [tensor([1., 1.])], 'name': 'a'}
    """

    def __init__(self, non_blocking: bool = True) -> None:  # noqa: FBT001, FBT002 - MMEngine's
        super().__init__()
        self._non_blocking = non_blocking
        self._device = torch.device("cpu")

    @property
    def device(self) -> torch.device:
        """Where batches go."""
        return self._device

    def cast_data(self, data: Any) -> Any:
        """Return ``data`` with its tensors on :attr:`device`; containers keep their type."""
        if type(data) is dict:
            device = self._device
            for value in data.values():  # no all(): a generator costs as much as the rest
                if type(value) is not Tensor or value.device != device:
                    break
            else:  # most batches on a CPU, and on a device those that were prefetched
                return data.copy()

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(self._device, non_blocking=self._non_blocking)

        def move_object(value: Any) -> Any:
            is_movable = hasattr(value, "to") and hasattr(value, "cpu")  # a time zone is not
            return value.to(self._device) if is_movable else value

        return map_tensors(data, move, move_object)

    def forward(self, data: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002, ARG002
        """Prepare one batch. ``training`` tells a subclass whether to augment."""
        return self.cast_data(data)

    @override
    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Self:
        # .to() and .cuda() come through here. A probe tensor shows the device; a buffer would show
        # up in checkpoints.
        self._device = fn(torch.empty(0, device=self._device)).device
        return super()._apply(fn, *args, **kwargs)  # type: ignore[no-any-return, no-untyped-call]


class BaseModel(nn.Module, ABC):
    """A model with a loss: override :meth:`forward`, the Runner does the rest.

    Args:
        data_preprocessor: Module or config of one; by default batches are only moved to the
            device of the model.
        init_cfg: Accepted for MMEngine's signature; weights are initialized by the modules
            themselves, so anything but ``None`` is an error.

    Example:
        >>> class Classifier(BaseModel):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.linear = nn.Linear(4, 3)
        ...
        ...     def forward(self, inputs, labels, mode="tensor"):
        ...         scores = self.linear(inputs)
        ...         if mode == "loss":
        ...             return {"loss": nn.functional.cross_entropy(scores, labels)}
        ...         return (scores, labels) if mode == "predict" else scores
    """

    def __init__(
        self,
        data_preprocessor: nn.Module | Mapping[str, Any] | None = None,
        init_cfg: object = None,
    ) -> None:
        super().__init__()
        if init_cfg is not None:
            raise ConfigError(
                f"init_cfg={init_cfg!r} was given; models initialize their own weights here. "
                "Initialize them in __init__, or define init_weights() on the model."
            )
        if data_preprocessor is None or isinstance(data_preprocessor, Mapping):
            default = {"type": BaseDataPreprocessor}
            data_preprocessor = build_from_cfg(
                data_preprocessor or {}, MODELS, default, where="data_preprocessor"
            )
        self.data_preprocessor: Any = data_preprocessor

    @abstractmethod
    def forward(self, *args: Any, mode: str = "tensor", **kwargs: Any) -> Any:
        """Compute what ``mode`` asks for.

        Args:
            *args: The batch, if the loader gives a sequence.
            mode: ``"loss"``: a dict of losses (0-d tensors, tensors, or lists of tensors);
                ``"predict"``: what metrics take; ``"tensor"``: raw outputs.
            **kwargs: The batch, if the loader gives a mapping.
        """

    def train_step(self, data: Any, optim_wrapper: Any) -> dict[str, Tensor]:
        """Run one training step: forward, loss, backward, update.

        Args:
            data: A batch as the loader gives it.
            optim_wrapper: Has ``optim_context(model)`` and ``update_params(loss)``.

        Returns:
            The losses by name, detached tensors left on their device.
        """
        logged: dict[str, Tensor] = run_train_step(self, self, data, optim_wrapper)
        return logged

    def val_step(self, data: Any) -> Any:
        """Return the predictions for one batch of the validation set."""
        return run_forward(self, self.data_preprocessor(data, False), "predict")  # noqa: FBT003

    def test_step(self, data: Any) -> Any:
        """Return the predictions for one batch of the test set."""
        return run_forward(self, self.data_preprocessor(data, False), "predict")  # noqa: FBT003

    def parse_losses(self, losses: Mapping[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
        """Reduce what ``forward(mode='loss')`` gave to one loss and what to log.

        Args:
            losses: Values are tensors (their mean counts) or lists of tensors (the sum of their
                means counts).

        Returns:
            The sum of the entries whose name contains ``"loss"``, shape ``()``, with gradient;
            and all entries by name, that sum first as ``"loss"``, detached.

        Raises:
            ModelOutputError: If ``losses`` is no mapping, or an entry is neither a tensor nor a
                list of tensors.
            ConfigError: If no name contains ``"loss"``.
        """
        # What most models return, in every step.
        only = losses.get("loss") if type(losses) is dict and len(losses) == 1 else None
        if isinstance(only, Tensor) and not only.ndim:
            return only, OrderedDict(loss=only.detach())
        by_whom = f"forward(mode='loss') of {type(self).__name__} returned"
        if not isinstance(losses, Mapping):
            raise ModelOutputError(
                f"{by_whom} {short_repr(losses)}; a dict of losses is needed: return "
                "dict(loss=...)."
            )
        means = {}
        for name, value in losses.items():
            parts = value if isinstance(value, (list, tuple)) else [value]
            if not parts or not all(isinstance(part, Tensor) for part in parts):
                raise ModelOutputError(
                    f"{by_whom} {name!r}: {short_repr(value)}; a tensor with gradient, or a "
                    "non-empty list of tensors, is needed."
                )
            summed = [part.mean() if part.ndim else part for part in parts]
            means[name] = summed[0] if len(summed) == 1 else torch.stack(summed).sum()
        terms = [value for name, value in means.items() if "loss" in name]
        if not terms:
            raise ConfigError(
                f"forward(mode='loss') returned {', '.join(map(repr, losses)) or 'nothing'}; "
                "at least one name must contain 'loss', those are summed."
            )
        loss = terms[0] if len(terms) == 1 else torch.stack(terms).sum()
        logged = OrderedDict(loss=loss.detach())
        logged.update((name, value.detach()) for name, value in means.items() if name != "loss")
        return loss, logged
