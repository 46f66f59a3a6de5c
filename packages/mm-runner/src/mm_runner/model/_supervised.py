"""Model that trains a plain module, with a loss function or with the loss that it computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from mm_runner.errors import ConfigError
from mm_runner.registry import FUNCTIONS, MODELS, build_from_cfg

from ._base_model import BaseModel

Keys = str | Sequence[str]


class Supervised(BaseModel):
    """Trains any module; the module knows nothing of the Runner.

    With a ``loss``: if a batch is a sequence, its last item is the target and the others are the
    module's arguments. If it is a mapping, ``inputs`` and ``targets`` name its entries, and other
    entries are ignored. Without one the module computes its loss itself, as Hugging Face's models
    do where a batch has ``labels``, and torchvision's detectors: it is called with the whole batch,
    but for entries that it does not take, and returns a mapping with losses, or the loss.

    A prediction is ``(outputs, targets)``, as :class:`~mm_runner.evaluator.Accuracy` takes it, or
    the outputs alone of a batch without targets. If the output has ``logits``, the prediction is
    these; of another mapping it is all but the loss.

    In checkpoints the parameters have the names that they have in the module; names of the loss's
    parameters begin with ``loss_fn.``.

    Args:
        module: The module, or its config.
        loss: Called with ``(outputs, targets)``; returns a tensor or a dict of losses. A function,
            a module, the import path of a function, or the config of a module.
        inputs: Key, or keys in the order of the module's arguments, of a batch that is a mapping.
        targets: Key of the target, or keys, whose values come as a tuple.
        data_preprocessor: As of :class:`BaseModel`.

    Attributes:
        net: The module.
        loss_fn: The loss, or ``None``.

    Raises:
        ConfigError: If ``module`` is no module or ``loss`` cannot be called.
    """

    weights_prefix = "net."  # which names in checkpoints are without

    def __init__(
        self,
        module: nn.Module | Mapping[str, Any],
        loss: Callable[..., Any] | Mapping[str, Any] | str | None = None,
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
        if loss is not None and (not callable(self.loss_fn) or isinstance(self.loss_fn, type)):
            raise ConfigError(
                "loss: a function of (outputs, targets), a module, an import path or the config "
                f"of a module is needed, got {loss!r}."
            )
        self._inputs = (inputs,) if isinstance(inputs, str) else tuple(inputs)
        self._targets = (targets,) if isinstance(targets, str) else tuple(targets)
        # What a module takes that computes its loss itself; others get their inputs by position.
        parameters = inspect.signature(module.forward).parameters if loss is None else {}
        kinds = {one.kind for one in parameters.values()}
        self._taken = set(parameters)
        self._takes_any_name = inspect.Parameter.VAR_KEYWORD in kinds
        self._takes_any_number = inspect.Parameter.VAR_POSITIONAL in kinds

    @override
    def forward(self, *args: Any, mode: str = "tensor", **kwargs: Any) -> Any:
        """Compute what ``mode`` asks for.

        Args:
            *args: The batch, if it is a sequence; in the mode ``"tensor"`` without the target.
            mode: ``"loss"``: a dict of losses; ``"predict"``: the outputs, and the targets if the
                batch has some; ``"tensor"``: what the module returns.
            **kwargs: The batch, if it is a mapping.
        """
        call = self._call_whole if self.loss_fn is None else self._call_inputs
        outputs, targets = call(args, kwargs, mode)
        if mode == "tensor":
            return outputs
        logits = _prediction_in(outputs)
        target = targets[0] if len(targets) == 1 else targets
        if mode == "predict":
            return (logits, target) if targets else logits
        losses = self._own_losses(outputs) if self.loss_fn is None else self.loss_fn(logits, target)
        return losses if isinstance(losses, Mapping) else {"loss": losses}

    def _call_whole(self, args: Any, kwargs: Any, mode: str) -> tuple[Any, tuple[Any, ...]]:
        """Call the module with a whole batch; return its outputs, and the targets."""
        if kwargs:
            targets = tuple(kwargs[key] for key in self._targets if key in kwargs)
            if mode == "tensor":  # what the module computes from its inputs alone
                kwargs = {key: one for key, one in kwargs.items() if key not in self._targets}
            return self.net(**self._taken_of(kwargs)), targets
        if mode == "predict" and len(args) > 1:
            return self.net(*args[:-1]), args[-1:]
        if len(args) > len(self._taken) and not self._takes_any_number:
            raise self._no_loss(f"does not take batches of {len(args)} parts")
        return self.net(*args), ()

    def _call_inputs(self, args: Any, kwargs: Any, mode: str) -> tuple[Any, tuple[Any, ...]]:
        """Call the module with the inputs of a batch; return its outputs, and the targets."""
        targets: tuple[Any, ...] = ()
        if kwargs:
            if mode == "loss" or (mode == "predict" and set(self._targets) <= set(kwargs)):
                targets = self._pick(kwargs, self._targets, "targets")
            return self.net(*self._pick(kwargs, self._inputs, "inputs")), targets
        if mode == "loss" and len(args) < 2:
            raise ConfigError(
                f"Supervised: a batch of inputs and a target is needed, got {len(args)} "
                "part(s). Let the dataset return (inputs, target)."
            )
        if mode != "tensor" and len(args) > 1:
            args, targets = args[:-1], args[-1:]
        return self.net(*args), targets

    def _taken_of(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._takes_any_name:
            return batch
        taken = {key: value for key, value in batch.items() if key in self._taken}
        if not taken:
            raise self._no_loss(f"takes none of {', '.join(map(repr, batch))}")
        return taken

    def _own_losses(self, outputs: Any) -> Any:
        if isinstance(outputs, Tensor) and not outputs.ndim:
            return outputs
        if isinstance(outputs, Mapping):
            if isinstance(outputs.get("loss"), Tensor):
                return outputs["loss"]
            if any("loss" in str(name) for name in outputs):
                return outputs
        given = f"a {type(outputs).__name__}"
        if isinstance(outputs, Mapping):
            given += f" with {', '.join(map(repr, outputs)) or 'nothing'}"
        raise self._no_loss(f"returned {given}")

    def _no_loss(self, fact: str) -> ConfigError:
        return ConfigError(
            f"loss: none was given, and {type(self.net).__name__} {fact}. Give the key loss, "
            "such as 'torch.nn.functional:cross_entropy'; or, to a model that computes its loss, "
            "batches with what it needs for that, such as 'labels'."
        )

    @staticmethod
    def _pick(batch: Mapping[str, Any], keys: Sequence[str], role: str) -> tuple[Any, ...]:
        missing = [key for key in keys if key not in batch]
        if missing:
            raise ConfigError(
                f"Supervised.{role}: {', '.join(map(repr, missing))} was asked for; the batch has "
                f"{', '.join(map(repr, batch))}. Name the keys of yours: Supervised({role}=...)."
            )
        return tuple(batch[key] for key in keys)


def _prediction_in(outputs: Any) -> Any:
    """Return what a metric takes of outputs: the logits, or all but the loss."""
    if not isinstance(outputs, Mapping):
        return getattr(outputs, "logits", outputs)
    if "logits" in outputs:
        return outputs["logits"]
    return {name: one for name, one in outputs.items() if name != "loss"}
