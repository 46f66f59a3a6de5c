"""The optimizer wrapper: accumulate, clip, step and zero, in the right order."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ._accumulation import MicroBatches, warn_about_accumulation
from ._checks import check_loss, check_optimizer
from ._clipping import build_clipper
from ._errors import ConfigError
from ._gradient_sync import defer_gradient_sync
from ._parameters import parameters_with_gradient
from ._precision import AbstractPrecision, FullPrecision
from ._result import StepResult


class OptimWrapper:
    """Train with any torch optimizer: gradient accumulation, clipping, and one call per step.

    Names and arguments are those of MMEngine's ``OptimWrapper``. Nothing in a step copies from the
    device, so the host can run ahead of it.

    Args:
        optimizer: A ``torch.optim.Optimizer``.
        accumulative_counts: Micro-batches per optimizer step. Defaults to 1.
        clip_grad: ``dict(max_norm=1.0)`` to clip by the total norm (further keys: ``norm_type``,
            default 2, ``error_if_nonfinite``, ``foreach``), ``dict(type='value', clip_value=0.5)``
            to clamp each element, or ``None`` (the default). The dict is not changed.

    Attributes:
        optimizer: The optimizer given.
        last_result: What the last ``update_params`` or ``step`` did; ``None`` before the first.

    Raises:
        ConfigError: If an argument has a value that cannot work.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> with wrapper.optim_context(model):
        ...     loss = model(torch.ones(2, 4)).square().mean()
        >>> wrapper.update_params(loss).stepped
        True
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
    ) -> None:
        self.optimizer = check_optimizer(optimizer)
        self.last_result: StepResult | None = None
        self._micro_batches = MicroBatches(accumulative_counts)
        self._clipper = build_clipper(clip_grad)
        self._clip_grad = None if clip_grad is None else dict(clip_grad)  # for repr only
        self._deferred_sync = ExitStack()
        self._model: nn.Module | None = None
        self._precision: AbstractPrecision = FullPrecision(optimizer)

    def update_params(
        self,
        loss: Tensor,
        step_kwargs: Mapping[str, Any] | None = None,
        zero_kwargs: Mapping[str, Any] | None = None,
    ) -> StepResult:
        """Run backward and, when a window of micro-batches is full, step and zero the gradients.

        Args:
            loss: The micro-batch's loss, one element, not yet divided for accumulation.
            step_kwargs: Passed on to ``optimizer.step``.
            zero_kwargs: Passed on to ``optimizer.zero_grad``.

        Returns:
            What was done; also kept as ``last_result``.

        Raises:
            ConfigError: If ``loss`` is no scalar tensor with a gradient.
        """
        self.backward(self.scale_loss(loss))
        if self.should_update():
            result = self.step(**(step_kwargs or {}))
            self.zero_grad(**(zero_kwargs or {}))
            return result
        self.last_result = StepResult(
            stepped=False, skipped=False, grad_norm=None, loss_scale=self._precision.loss_scale()
        )
        return self.last_result

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run backward from ``loss``, with the loss scale where there is one, and count it.

        A gradient exchange that ``optim_context`` put off is back on when this returns or raises.

        Args:
            loss: One element; for accumulation, already divided by ``scale_loss``.
            **kwargs: Passed on to ``Tensor.backward``, such as ``retain_graph``.
        """
        try:
            self._precision.scale(check_loss(loss)).backward(**kwargs)  # type: ignore[no-untyped-call]
        finally:
            self._deferred_sync.close()
        self._micro_batches.count()

    def step(self, **kwargs: Any) -> StepResult:
        """Take the loss scale out, clip, and step the optimizer unless gradients overflowed.

        Args:
            **kwargs: Passed on to ``optimizer.step``.

        Returns:
            What was done; also kept as ``last_result``.
        """
        loss_scale = self._precision.loss_scale()
        grad_norm = self._clip_gradients()
        stepped, skipped = self._precision.step(**kwargs)
        self.last_result = StepResult(stepped, skipped, grad_norm, loss_scale)
        return self.last_result

    def _clip_gradients(self) -> Tensor | None:
        parameters = parameters_with_gradient(self.optimizer) if self._clipper else []
        if self._clipper is None or not parameters:
            return None
        self._precision.unscale()
        return self._clipper.clip(parameters, self._model)

    def zero_grad(self, **kwargs: Any) -> None:
        """Zero the gradients; arguments are those of ``optimizer.zero_grad``."""
        self.optimizer.zero_grad(**kwargs)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Run the forward of one micro-batch; leave it before ``update_params``.

        While micro-batches accumulate, ranks do not exchange gradients. That lasts until the next
        ``backward`` has returned, beyond this context, because sharded models decide in backward.

        Args:
            model: The model as it is called: wrapped by DDP or sharded if it is.
        """
        self._model = model
        self._deferred_sync.close()  # a forward without a backward may have left it open
        if not self.should_sync():
            self._deferred_sync = defer_gradient_sync(model)
        try:
            with self._precision.forward_context(model):
                yield
        except BaseException:
            self._deferred_sync.close()
            raise

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Tell how many micro-batches there are, so that a short last window is weighed right.

        Logs a warning where accumulation will not equal one big batch.

        Args:
            model: The model, searched for BatchNorm layers.
            init_counts: Micro-batches already done, 0 unless training is resumed.
            max_counts: Micro-batches in the whole training.
        """
        self._micro_batches.expect(init_counts, max_counts)
        warn_about_accumulation(model, init_counts, self._micro_batches.window)

    def should_update(self) -> bool:
        """Whether the optimizer is due now, after the last backward."""
        return self._micro_batches.ends_window(self._micro_batches.done)

    def should_sync(self) -> bool:
        """Whether ranks have to exchange gradients in the next backward."""
        return self._micro_batches.ends_window(self._micro_batches.done + 1)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Divide ``loss`` by the number of micro-batches in its window; the last may be short."""
        window = self._micro_batches.current_window
        return check_loss(loss) if window == 1 else check_loss(loss) / window

    def get_lr(self) -> dict[str, list[float]]:
        """Return ``{'lr': [...]}``, one learning rate per parameter group."""
        return {"lr": [group["lr"] for group in self.param_groups]}

    def get_momentum(self) -> dict[str, list[float]]:
        """Return ``{'momentum': [...]}``: each group's momentum, else its first beta, else 0."""
        return {"momentum": [_momentum(group) for group in self.param_groups]}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the loss scaler's as ``loss_scaler`` if there is one.

        The tensors are the live ones, as with torch: save or copy before the next step.
        """
        return {**self.optimizer.state_dict(), **self._precision.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what ``state_dict`` returned, here or in MMEngine, with or without a loss scaler.

        Args:
            state_dict: Left as it is. MMEngine's ``base_param_settings`` is ignored: it repeats
                the optimizer's defaults for MMEngine's logging.

        Raises:
            ConfigError: If it is no optimizer's state.
        """
        missing = [key for key in ("state", "param_groups") if key not in state_dict]
        if missing:
            raise ConfigError(
                f"the state has no {' and no '.join(missing)}, only {', '.join(state_dict)}; "
                "pass what state_dict() of a wrapper or of a torch optimizer returned."
            )
        ours = ("base_param_settings", "loss_scaler")
        self.optimizer.load_state_dict({k: v for k, v in state_dict.items() if k not in ours})
        self._precision.load_state_dict(state_dict)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, live: a scheduler may write ``lr`` to them."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The optimizer's default settings."""
        return self.optimizer.defaults

    @property
    def accumulative_counts(self) -> int:
        """Micro-batches per optimizer step."""
        return self._micro_batches.window

    @property
    def inner_count(self) -> int:
        """Micro-batches done so far, counted by ``backward``."""
        return self._micro_batches.done

    def _describe(self) -> dict[str, object]:
        """Return what ``repr`` shows, in order."""
        return {
            "accumulative_counts": self._micro_batches.window,
            "clip_grad": self._clip_grad,
            "optimizer": self.optimizer,
        }

    def __repr__(self) -> str:
        lines = "".join(f"  {name}={value},\n" for name, value in self._describe().items())
        return f"{type(self).__name__}(\n{lines})"


def _momentum(group: Mapping[str, Any]) -> float:
    if "momentum" in group:
        momentum: float = group["momentum"]
        return momentum
    first_beta: float = group.get("betas", (0.0,))[0]
    return first_beta
