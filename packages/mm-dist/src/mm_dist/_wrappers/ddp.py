"""Data parallelism: every rank holds the whole model, gradients are averaged."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._torch_private import (
    admit_sync_batch_norm,
    drop_comm_hooks,
    find_reducer_check,
    is_static_graph_learned,
)
from mm_dist._wrappers import _steps
from mm_dist._wrappers._ddp_arguments import check_group, check_module, read_ddp_arguments
from mm_dist._wrappers._gradient_hooks import ForwardGuard, GradientWatch
from mm_dist._wrappers._reduction_errors import ExplainedErrors, check_still_frozen
from mm_dist._wrappers._steps import OptimWrapperProtocol, run_train_step

_logger = logging.getLogger(__name__)
# What belongs to this process: neither copied nor pickled, but made anew.
_is_compiling: Callable[[], bool] = getattr(
    getattr(torch, "compiler", None), "is_compiling", lambda: False
)  # torch 2.3
_OWN_STATE = ("_guard", "_gradient_watch", "_check_averaging", "_frozen", "comm_hook_state")


@admit_sync_batch_norm
class MMDistributedDataParallel(DistributedDataParallel):
    """torch's ``DistributedDataParallel`` with the steps that a training loop calls.

    The wrapped module provides ``data_preprocessor(data, training)``, ``forward(..., mode)`` and
    ``parse_losses(losses) -> (loss, log_vars)``; for evaluation ``val_step(data)`` and
    ``test_step(data)``.

    A backward pass whose gradients would silently stay on their rank raises: that of the module
    called around the wrapper, or the second one after one forward. Parameters are watched for this
    in the first 16 steps (or in each, see ``check_forward``). A parameter that the loss does not
    reach is named, with the remedies.

    ``device_ids`` defaults to the device of the module. It and ``output_device`` are dropped for a
    module on the CPU, where torch refuses them. ``broadcast_buffers`` is passed as
    ``forward_sync_buffers`` where torch has deprecated the former; torch then synchronises buffers
    once, at construction, even if it is ``False``.

    Args:
        module: The model, on its device already.
        detect_anomalous_params: Log the names of parameters that the loss does not reach.
        comm_hook: How gradients travel. ``"fp16"`` and ``"bf16"`` round them for the way,
            ``"powerSGD"`` sends an approximation of low rank. A dict adds options:
            ``dict(type="powerSGD", matrix_approximation_rank=2, start_powerSGD_iter=500)``, those
            of torch's ``PowerSGDState``. Or a function ``(state, bucket)`` as torch takes it, with
            its state as ``dict(type=function, state=...)``. Defaults to the gradients as they are.
        check_forward: Raise in a backward pass that no forward of the wrapper has prepared:
            ``True``, ``False``, or ``"always"``: in every step, for some microseconds a parameter.
        **ddp_kwargs: Arguments of torch's ``DistributedDataParallel``.

    Attributes:
        comm_hook_state: The state of ``comm_hook``: of ``"powerSGD"`` torch's ``PowerSGDState``,
            with what the approximation has left out so far; of a function what it was given.

    Raises:
        ArgumentTypeError: If an argument is not known, or ``comm_hook`` is of another kind.
        ConfigError: If no parameter of the module is trainable, it or a part of it is wrapped
            already, or ``comm_hook`` cannot be used.
        LaunchError: If there is no process group.

    Example:
        >>> wrapper = MMDistributedDataParallel(nn.Linear(2, 1), comm_hook="bf16")
    """

    val_step, test_step = _steps.val_step, _steps.test_step
    # Where the module is in the model, for messages; the wrapper of one child says its name.
    _name_prefix = ""

    def __init__(
        self,
        module: nn.Module,
        detect_anomalous_params: bool = False,  # noqa: FBT001, FBT002 (MMEngine's signature)
        *,
        comm_hook: str | Callable[..., Any] | dict[str, Any] | None = None,
        check_forward: bool | str = True,
        **ddp_kwargs: Any,
    ) -> None:
        check_module(module)
        if not isinstance(check_forward, bool) and check_forward != "always":
            raise ArgumentTypeError(
                f"check_forward={check_forward!r} is not known; give True (the first steps are "
                'watched), "always", or False.'
            )
        arguments = read_ddp_arguments(module, ddp_kwargs)
        check_group(module, arguments)
        if comm_hook is not None and arguments.get("mixed_precision") is not None:
            raise ConfigError(
                "mixed_precision= communicates through a hook of its own; leave out comm_hook, and "
                "set the reduce_dtype of mixed_precision instead."
            )
        super().__init__(module, **arguments)
        self.detect_anomalous_params = detect_anomalous_params
        self.check_forward = check_forward
        self.comm_hook = comm_hook
        self._attach_to_reducer()

    def _attach_to_reducer(self) -> None:
        """Set up what depends on torch's reducer, which is made anew in a copy."""
        parameters = self._named_parameters(trained=True)
        self._reduced_names = tuple(name for name, _ in parameters)
        self._frozen = self._named_parameters(trained=False)
        self._gradient_watch = GradientWatch(parameters) if self.detect_anomalous_params else None
        # torch has no reducer if it delays the communication of all parameters.
        is_guarded = self.check_forward and getattr(self, "reducer", None) is not None
        is_constant = self.check_forward == "always"
        self._guard = (
            ForwardGuard(self, parameters, is_constant=is_constant) if is_guarded else None
        )
        self._is_prepared = False
        self._check_averaging = find_reducer_check(self)
        self.comm_hook_state = None
        if self.comm_hook is not None:
            # It needs torch.distributed at import.
            from mm_dist._wrappers._comm_hooks import install_comm_hook  # noqa: PLC0415

            self.comm_hook_state = install_comm_hook(self, self.comm_hook)

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

    def check_reduction(self) -> None:
        """Raise unless the gradients of this step were averaged over the ranks.

        Raises:
            GradientSyncError: Naming the parameters.
        """
        check_still_frozen(self._frozen)
        if _is_compiling():  # torch's reducer cannot be traced; it checks in the next forward
            return
        with ExplainedErrors(self, self._reduced_names):
            self._check_averaging()

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        if self.comm_hook is not None:
            drop_comm_hooks(state)
        return {name: value for name, value in state.items() if name not in _OWN_STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._attach_to_reducer()

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Call the module, and prepare the averaging of the gradients of the next backward.

        Raises:
            GradientSyncError: If the gradients of the last backward were not averaged, because it
                did not reach every parameter.
        """
        # Without a guard, and once the graph is learned, nothing is left to prepare.
        if not self._is_prepared and torch.is_grad_enabled() and not self._prepare_backward():
            return self._forward_synchronized(inputs, kwargs)
        with ExplainedErrors(self, self._reduced_names):
            return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]

    def _prepare_backward(self) -> bool:
        """Prepare for a backward pass; return ``False`` if forward must synchronise first."""
        is_synchronized = self.require_backward_grad_sync
        is_unlearned = self.static_graph and not is_static_graph_learned(self)
        if is_unlearned and not is_synchronized:
            return False
        is_watching = self._guard is not None and self._guard.note_forward(is_synchronized)
        self._is_prepared = not is_watching and not is_unlearned
        return True

    def _forward_synchronized(self, inputs: Any, kwargs: Any) -> Any:
        """Run a forward of ``no_sync()`` as if outside, so that torch learns the static graph.

        torch learns it in the first synchronised backward, and crashes if another came before.
        Averaging what has accumulated, and then the rest, gives the same gradients as averaging
        once.
        """
        _logger.info(
            "static_graph=True: the gradients of this micro-batch are averaged although they "
            "accumulate; torch learns the graph from the first synchronised steps."
        )
        self.require_backward_grad_sync = True
        try:
            return self.forward(*inputs, **kwargs)
        finally:
            self.require_backward_grad_sync = False

    def train_step(self, data: Any, optim_wrapper: OptimWrapperProtocol) -> dict[str, Any]:
        """Run forward, backward and the optimizer on one batch.

        Args:
            data: One batch, as the model's ``data_preprocessor`` takes it. What that returns is
                passed to ``forward``: a mapping by name, a list or tuple by position.
            optim_wrapper: Provides the context of the forward pass, and runs backward.

        Returns:
            The ``log_vars`` of the model's ``parse_losses``, on the device.

        Raises:
            ArgumentTypeError: If the module lacks a method that a step needs, or the batch is no
                mapping, list or tuple.
            GradientSyncError: If the gradients were not averaged over the ranks, or a parameter was
                unfrozen since the model was wrapped, whose gradient is not.
        """
        watch = self._gradient_watch
        if watch is not None:
            watch.start()
        with ExplainedErrors(self, self._reduced_names):
            log_vars = run_train_step(self, data, optim_wrapper, self.check_reduction)
        if watch is not None:
            watch.report()
        return log_vars
