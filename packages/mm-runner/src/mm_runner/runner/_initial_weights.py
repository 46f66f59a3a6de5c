"""The weights that a training begins with: what the model's ``init_weights()`` makes them."""

from __future__ import annotations

from inspect import isclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.model import unwrap_model

from ._wrapping import wrapper_class

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping

    from mm_dist import DistInfo
    from mm_runner.runner import Runner

__all__ = ["InitialWeights"]


class InitialWeights:
    """Calls ``init_weights()`` of a model once, if a training is what the run is for.

    That is as the training begins, before a checkpoint is loaded, and so never for an evaluation.
    It comes earlier, before the model is wrapped, if the wrapper is not torch's
    DistributedDataParallel or derived from it: no process may have whole parameters later, or the
    model the children that it was made with. What was loaded into the model, or written there,
    since the Runner was built stays as it is.

    Args:
        logger: Told what the weights are.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._is_settled = False
        self._versions: list[int] = []

    def before_wrapping(
        self, model: nn.Module, cfg: Mapping[str, Any], dist_info: DistInfo
    ) -> None:
        """Call it now if the model is not the same once it is wrapped.

        Args:
            model: Not wrapped yet.
            cfg: The full configuration.
            dist_info: The place of this process.
        """
        if dist_info.backend is None or mm_dist.is_model_wrapper(model):
            return
        kind = wrapper_class(cfg)
        if not (isclass(kind) and issubclass(kind, DistributedDataParallel)):
            self._call(model)

    def after_wrapping(self, model: nn.Module) -> None:
        """Take note of the weights, to find out what becomes of them until training begins."""
        if not _is_changed(model):
            self._versions = _versions(model)

    def are_given(self) -> None:
        """Take note that a checkpoint was loaded."""
        self._is_settled = True

    def begin_training(self, runner: Runner) -> None:
        """Call it if it is due; on several processes all then have the first one's weights.

        Raises:
            ConfigError: If it put new parameters in the place of those that the wrapper knows.
        """
        if self._is_settled:
            return
        wrapped = runner.model
        model = unwrap_model(wrapped)
        before = dict(model.named_parameters())
        if not hasattr(model, "init_weights") or _is_changed(wrapped):
            self._is_settled = True
        elif self._versions != _versions(wrapped):
            self._is_settled = True
            self._logger.info(
                f"The weights were changed since the Runner was built: "
                f"{type(model).__name__}.init_weights() is not called."
            )
        else:
            self._call(model)
            model.to(runner.device)  # it may have put tensors of the CPU in their place
            if wrapped is not model:
                _check_same(before, model)
                _share(wrapped)

    def _call(self, model: Any) -> None:
        self._is_settled = True
        if hasattr(model, "init_weights"):
            self._logger.info(f"Weights are what {type(model).__name__}.init_weights() makes them.")
            model.init_weights()


def _is_changed(model: nn.Module) -> bool:
    """Tell whether a wrapper has changed the model within it."""
    return mm_dist.is_model_wrapper(model) and not isinstance(model, DistributedDataParallel)


def _versions(model: nn.Module) -> list[int]:
    """Return how often each parameter was written to."""
    return [0 if one.is_inference() else one._version for one in model.parameters()]  # noqa: SLF001


def _check_same(before: Mapping[str, nn.Parameter], model: nn.Module) -> None:
    new = [name for name, one in model.named_parameters() if before.get(name) is not one]
    if new:
        raise ConfigError(
            f"{type(model).__name__}.init_weights() put new parameters in place of "
            f"{', '.join(new[:5])}{' and others' if len(new) > 5 else ''}; the wrapper, which "
            "shares gradients between processes, knows the old ones. Change their values, as "
            "torch.nn.init does, or make the new ones in __init__."
        )


@torch.no_grad()
def _share(model: nn.Module) -> None:
    """Give every process the first one's parameters and buffers, as the wrapper did when made."""
    ignored = getattr(model, "parameters_to_ignore", ())
    inner = unwrap_model(model)
    for name, tensor in (*inner.named_parameters(), *inner.named_buffers()):
        if name not in ignored:
            mm_dist.broadcast(tensor.data)
