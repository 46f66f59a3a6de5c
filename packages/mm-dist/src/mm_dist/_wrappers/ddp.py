"""Data parallelism: every rank holds the whole model, gradients are averaged."""

import logging
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._torch_private import admit_sync_batch_norm
from mm_dist._wrappers import _steps
from mm_dist._wrappers._ddp_checks import (
    check_group,
    check_module,
    check_still_frozen,
    raise_explained,
    read_ddp_arguments,
)
from mm_dist._wrappers._steps import OptimWrapperProtocol, run_train_step

_logger = logging.getLogger(__name__)


@admit_sync_batch_norm
class MMDistributedDataParallel(DistributedDataParallel):
    """torch's ``DistributedDataParallel`` with the steps that a training loop calls.

    The wrapped module provides ``data_preprocessor(data, training)``, ``forward(..., mode)`` and
    ``parse_losses(losses) -> (loss, log_vars)``; for evaluation ``val_step(data)`` and
    ``test_step(data)``. A parameter that the loss does not reach is named, with the remedies.

    ``device_ids`` defaults to the device of the module. It and ``output_device`` are dropped for a
    module on the CPU, where torch refuses them. ``broadcast_buffers`` is passed as
    ``forward_sync_buffers`` where torch has deprecated the former; torch then synchronizes buffers
    once, at construction, even if it is ``False``.

    Args:
        module: The model, on its device already.
        detect_anomalous_params: Log the names of parameters that the loss does not reach.
        comm_hook: ``"fp16"`` or ``"bf16"`` rounds gradients for the way. Other hooks are registered
            by ``register_comm_hook``, as in torch.
        **ddp_kwargs: Arguments of torch's ``DistributedDataParallel``.

    Raises:
        ArgumentTypeError: If an argument is not known.
        ConfigError: If no parameter of the module is trainable, it is wrapped already, or
            ``comm_hook`` cannot be used.
        LaunchError: If there is no process group.
        TorchVersionError: If ``comm_hook`` is ``"bf16"`` before torch 2.4.

    Example:
        >>> wrapper = MMDistributedDataParallel(nn.Linear(2, 1), comm_hook="fp16")
    """

    val_step, test_step = _steps.val_step, _steps.test_step
    # Where the module is in the model, for messages; the wrapper of one child says its name.
    _name_prefix = ""

    def __init__(
        self,
        module: nn.Module,
        detect_anomalous_params: bool = False,  # noqa: FBT001, FBT002 (MMEngine's signature)
        *,
        comm_hook: str | None = None,
        **ddp_kwargs: Any,
    ) -> None:
        check_module(module)
        arguments = read_ddp_arguments(module, ddp_kwargs)
        check_group(arguments)
        super().__init__(module, **arguments)
        self.detect_anomalous_params = detect_anomalous_params
        parameters = self._named_parameters(trained=True)
        self._reduced_names = tuple(name for name, _ in parameters)
        self._frozen = self._named_parameters(trained=False)
        self._reached: set[str] = set()
        self._reported: list[str] = []
        for name, parameter in parameters if detect_anomalous_params else ():
            parameter.register_hook(partial(self._note, name))  # type: ignore[no-untyped-call]
        if comm_hook is not None:
            # It needs torch.distributed at import.
            from mm_dist._wrappers._comm_hooks import install_comm_hook  # noqa: PLC0415

            install_comm_hook(self, comm_hook)

    def _named_parameters(self, *, trained: bool) -> list[tuple[str, Tensor]]:
        """Return the parameters that torch's reducer manages, in its order, or the frozen ones."""
        found: dict[Tensor, str] = {}
        for module_name, module in self.module.named_modules():
            for own_name, parameter in module.named_parameters(recurse=False):
                # torch compares with the name in this form, dot included for the outermost module.
                name = f"{module_name}.{own_name}"
                is_ignored = name in self.parameters_to_ignore
                if parameter.requires_grad == trained and not is_ignored:
                    found.setdefault(parameter, self._name_prefix + name.lstrip("."))
        return [(name, parameter) for parameter, name in found.items()]

    def _note(self, name: str, _: Tensor) -> None:
        self._reached.add(name)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, and prepare the averaging of the gradients of the next backward.

        Raises:
            GradientSyncError: If the gradients of the last backward were not averaged, because it
                did not reach every parameter.
        """
        try:
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise_explained(error, self, self._reduced_names)
            raise

    def no_sync(self) -> Any:
        """Accumulate gradients on this rank; the context has to include backward.

        With ``static_graph=True`` every micro-batch is averaged nevertheless, which gives the same
        gradients: torch crashes where the first backward of a static graph is not synchronized.
        """
        return nullcontext() if self.static_graph else super().no_sync()

    def train_step(self, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
        """Run forward, backward and the optimizer on one batch.

        Args:
            data: One batch, as the model's ``data_preprocessor`` takes it. What that returns is
                passed to ``forward``: a mapping by name, a list or tuple by position.
            optim_wrapper: Provides the context of the forward pass, and runs backward.

        Returns:
            The ``log_vars`` of the model's ``parse_losses``, on the device.

        Raises:
            ArgumentTypeError: If the batch is no mapping, list or tuple.
            GradientSyncError: If the gradients of this step or the last one were not averaged, or a
                parameter was unfrozen since the model was wrapped, whose gradient is not.
        """
        self.begin_step()
        try:
            log_vars = run_train_step(self, data, optim_wrapper)
        except RuntimeError as error:
            raise_explained(error, self, self._reduced_names)
            raise
        self.end_step()
        return log_vars

    def begin_step(self) -> None:
        """Check that no parameter was unfrozen; forget which ones the last step reached."""
        check_still_frozen(self._frozen)
        self._reached.clear()

    def end_step(self) -> None:
        """Log the parameters that this step did not reach, if they are to be, once for each set."""
        if not self.detect_anomalous_params:
            return
        missing = [name for name in self._reduced_names if name not in self._reached]
        if missing and missing != self._reported:
            _logger.warning(
                "The loss did not reach these parameters: %s. Freeze them "
                "(requires_grad=False), use them in the loss, or pass "
                "find_unused_parameters=True.",
                ", ".join(missing),
            )
        self._reported = missing
