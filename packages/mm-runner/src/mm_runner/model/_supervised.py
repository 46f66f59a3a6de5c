"""Model that trains a plain module with a loss function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import FUNCTIONS, MODELS, build_from_cfg

from ._base_model import BaseModel

Keys = str | Sequence[str]


class Supervised(BaseModel):
    """Trains any module on pairs of inputs and targets; the module knows nothing of the Runner.

    If a batch is a sequence, its last item is the target and the others are the module's arguments.
    If it is a mapping, ``inputs`` and ``targets`` name its entries, and other entries are ignored.
    A prediction is ``(outputs, targets)``, as :class:`~mm_runner.evaluator.Accuracy` takes it.

    In checkpoints, names of the module's parameters begin with ``net.``, of the loss's with
    ``loss_fn.``.

    Args:
        module: The module, or its config.
        loss: Called with ``(outputs, targets)``; returns a tensor or a dict of losses. A function,
            a module, the import path of a function, or the config of a module.
        inputs: Key, or keys in the order of the module's arguments, of a batch that is a mapping.
        targets: Key of the target, or keys, whose values come as a tuple.
        data_preprocessor: As of :class:`BaseModel`.

    Attributes:
        net: The module.
        loss_fn: The loss.

    Raises:
        ConfigError: If ``module`` is no module or ``loss`` cannot be called.
    """

    def __init__(
        self,
        module: nn.Module | Mapping[str, Any],
        loss: Callable[..., Any] | Mapping[str, Any] | str,
        *,
        inputs: Keys = "inputs",
        targets: Keys = "labels",
        data_preprocessor: nn.Module | Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_preprocessor)
        if isinstance(module, Mapping):
            module = build_from_cfg(module, MODELS)
        if not isinstance(module, nn.Module):
            raise ConfigError(f"module: an nn.Module or its config is needed, got {module!r}.")
        self.net = module
        if isinstance(loss, Mapping):
            loss = build_from_cfg(loss, MODELS)
        self.loss_fn: Any = FUNCTIONS.get(loss) if isinstance(loss, str) else loss
        if not callable(self.loss_fn) or isinstance(self.loss_fn, type):
            raise ConfigError(
                "loss: a function of (outputs, targets), a module, an import path or the config "
                f"of a module is needed, got {loss!r}."
            )
        self._inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self._targets = (targets,) if isinstance(targets, str) else tuple(targets)

    @override
    def forward(self, *args: Any, mode: str = "tensor", **kwargs: Any) -> Any:
        """Compute what ``mode`` asks for.

        Args:
            *args: The module's arguments, and the target if ``mode`` is not ``"tensor"``.
            mode: ``"loss"``: a dict of losses; ``"predict"``: the outputs and the targets;
                ``"tensor"``: the outputs.
            **kwargs: A batch that is a mapping.
        """
        targets: Sequence[Any] = ()
        if kwargs:
            args = self._pick(kwargs, self._inputs, "inputs")
            if mode != "tensor":
                targets = self._pick(kwargs, self._targets, "targets")
        elif mode != "tensor":
            if len(args) < 2:
                raise ConfigError(
                    f"Supervised: a batch of inputs and a target is needed, got {len(args)} "
                    "part(s). Let the dataset return (inputs, target)."
                )
            args, targets = args[:-1], args[-1:]
        outputs = self.net(*args)
        if mode == "tensor":
            return outputs
        target = targets[0] if len(targets) == 1 else targets
        if mode == "predict":
            return outputs, target
        losses = self.loss_fn(outputs, target)
        return losses if isinstance(losses, Mapping) else {"loss": losses}

    @staticmethod
    def _pick(batch: Mapping[str, Any], keys: Sequence[str], role: str) -> tuple[Any, ...]:
        missing = [key for key in keys if key not in batch]
        if missing:
            raise ConfigError(
                f"Supervised.{role}: {', '.join(map(repr, missing))} was asked for; the batch has "
                f"{', '.join(map(repr, batch))}. Name the keys of yours: Supervised({role}=...)."
            )
        return tuple(batch[key] for key in keys)
