"""Data parallelism: every rank holds the whole model, gradients are averaged."""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._errors import ArgumentTypeError, ConfigError, LaunchError
from mm_dist._process_group import is_distributed
from mm_dist._wrappers._anomaly import GradientWatch
from mm_dist._wrappers._steps import OptimWrapperProtocol, check_methods, run_train_step


class MMDistributedDataParallel(DistributedDataParallel):
    """torch's ``DistributedDataParallel`` with the steps that a training loop calls.

    The wrapped module provides ``data_preprocessor(data, training)``, ``forward(..., mode)`` and
    ``parse_losses(losses) -> (loss, log_vars)``; for evaluation ``val_step(data)`` and
    ``test_step(data)``.

    ``device_ids`` and ``output_device`` are dropped for a module on the CPU, where torch refuses
    them. ``broadcast_buffers`` is passed as ``forward_sync_buffers`` where torch has deprecated
    the former; torch then synchronises buffers once, at construction, even if it is ``False``.

    Args:
        module: The model, on its device already.
        detect_anomalous_params: Log the names of parameters that the loss does not reach.
        **ddp_kwargs: Arguments of torch's ``DistributedDataParallel``.

    Raises:
        ConfigError: If no parameter of the module is trainable.
        LaunchError: If there is no process group.

    Example:
        >>> wrapper = MMDistributedDataParallel(nn.Linear(2, 1), broadcast_buffers=False)
    """

    def __init__(
        self,
        module: nn.Module,
        detect_anomalous_params: bool = False,  # noqa: FBT001, FBT002 (MMEngine's signature)
        **ddp_kwargs: Any,
    ) -> None:
        _check_module(module)
        _check_group(ddp_kwargs)
        super().__init__(module, **_translate_arguments(module, ddp_kwargs))
        self.detect_anomalous_params = detect_anomalous_params
        self._gradient_watch = GradientWatch(module) if detect_anomalous_params else None

    def train_step(self, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
        """Run forward, backward and the optimizer on one batch.

        Args:
            data: One batch, as the model's ``data_preprocessor`` takes it. What that returns is
                passed to ``forward``: a dict by name, a list or tuple by position.
            optim_wrapper: Provides the context of the forward pass, and runs backward.

        Returns:
            The ``log_vars`` of the model's ``parse_losses``, on the device.

        Raises:
            ArgumentTypeError: If the module lacks a method that a step needs, or the batch is no
                dict, list or tuple.
        """
        if self._gradient_watch is not None:
            self._gradient_watch.start()
        log_vars = run_train_step(self, data, optim_wrapper)
        if self._gradient_watch is not None:
            self._gradient_watch.report()
        return log_vars

    def val_step(self, data: Any) -> Any:
        """Return the module's own ``val_step(data)``; nothing is synchronised.

        Raises:
            ArgumentTypeError: If the module has none.
        """
        check_methods(self, "val_step", "val_step")
        return self.module.val_step(data)

    def test_step(self, data: Any) -> Any:
        """Return the module's own ``test_step(data)``; nothing is synchronised.

        Raises:
            ArgumentTypeError: If the module has none.
        """
        check_methods(self, "test_step", "test_step")
        return self.module.test_step(data)


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentTypeError(f"module must be a torch.nn.Module, got {type(module)}.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ConfigError(
            f"{type(module).__name__} has no parameter that requires a gradient, so there is "
            "nothing to synchronise; use it without a wrapper."
        )


def _check_group(ddp_kwargs: dict[str, Any]) -> None:
    given = ddp_kwargs.get("process_group"), ddp_kwargs.get("device_mesh")
    if given == (None, None) and not is_distributed():
        raise LaunchError(
            "MMDistributedDataParallel needs a process group, and there is none; call "
            "mm_dist.init_dist first, under a launcher such as torchrun. A single process needs "
            "no wrapper."
        )


def _translate_arguments(module: nn.Module, ddp_kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = dict(ddp_kwargs)
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        arguments.pop("device_ids", None)
        arguments.pop("output_device", None)
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    if "broadcast_buffers" in arguments and "forward_sync_buffers" in known:
        is_synchronised = arguments.pop("broadcast_buffers")
        arguments.setdefault("forward_sync_buffers", is_synchronised)
    return arguments
