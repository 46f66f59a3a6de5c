"""The optimizer wrapper: accumulate, clip, step and zero, in the right order."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ._abstract_optim_wrapper import AbstractOptimWrapper
from ._accumulation import warn_about_accumulation
from ._checks import check_loss
from ._errors import UnsupportedError
from ._gradient_sync import DeferredSyncContext, SyncDeferral
from ._loss_scaling import LossScaling
from ._parameters import ModelOrder, have_gradient
from ._result import ACCUMULATED, STEPPED, StepResult
from ._window_weights import WindowWeights
from ._zero_gradients import zero_gradients

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ._clipper import AbstractClipper
    from ._finite_guard import FiniteGuard


class OptimWrapper(AbstractOptimWrapper):
    """Train with any torch optimizer: gradient accumulation, clipping, and one call per step.

    Names and arguments are those of MMEngine's ``OptimWrapper``. Nothing in a step copies from the
    device, so the host can run ahead of it.

    Args:
        optimizer: A ``torch.optim.Optimizer``.
        accumulative_counts: Micro-batches per optimizer step. Defaults to 1.
        clip_grad: ``dict(max_norm=1.0)`` to clip by the total norm (further keys: ``norm_type``,
            default 2; ``foreach``; ``error_if_nonfinite``, which waits for the device in every
            step, and raises ``NonFiniteError``); ``dict(type='value', clip_value=0.5)`` to clamp
            each element; ``dict(type='agc', clip_factor=0.01)`` to clip each unit of each
            parameter by its own norm (further key: ``eps``, default 0.001); or ``None`` (the
            default). The dict is not changed.
        max_skips: Leave out a step whose loss or gradients are not finite, on any rank: parameters
            and the optimizer's state stay as they are (only a step counter in host memory goes on).
            That is known one step later, as the device is waited for in the first step only. A
            warning names the first parameters; that many in a row raise ``NonFiniteError``. Costs
            one norm per gradient, a copy of parameters and state during the step unless the
            optimizer is fused, and one scalar all-reduce if ranks average gradients. Defaults to
            ``None``: nothing is looked at.

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
        *,
        max_skips: int | None = None,
    ) -> None:
        super().__init__(optimizer, accumulative_counts)
        self._clipper = None if clip_grad is None else _build_clipper(clip_grad, optimizer)
        self._clip_grad = None if clip_grad is None else dict(clip_grad)
        self._deferred_sync = SyncDeferral()
        self._weights = WindowWeights()
        self._order = ModelOrder()
        self._model: nn.Module | None = None
        self._guard: FiniteGuard | None = None
        if max_skips is not None:
            from ._finite_guard import build_guard  # noqa: PLC0415 - few need it

            self._guard = build_guard(max_skips, accumulative_counts)
            self._skips.listeners.append(self._guard)
        # Whether an update is three calls unless it clips or scales; a subclass may have its own.
        self._is_plain = (
            self._guard is None
            and self._micro_batches.window == 1
            and all(getattr(type(self), name) is part for name, part in _PARTS_OF_UPDATE.items())
        )

    def update_params(
        self,
        loss: Tensor,
        step_kwargs: Mapping[str, Any] | None = None,
        zero_kwargs: Mapping[str, Any] | None = None,
        *,
        weight: float | Tensor | None = None,
    ) -> StepResult:
        """Run backward and, when a window of micro-batches is full, step and zero the gradients.

        Args:
            loss: The micro-batch's loss, one element, not yet divided for accumulation.
            step_kwargs: Passed on to ``optimizer.step``.
            zero_kwargs: Passed on to ``optimizer.zero_grad``.
            weight: What ``loss`` is the mean over on this rank: its number of samples or tokens; a
                number of at least 0 or a 0-d tensor, whose value is not read. Micro-batches of
                all ranks then count by their weight, as they would in one big batch; where it is 0,
                the loss may be NaN, but not its gradients. Give it in every call or in none, on all
                ranks alike; it costs one scalar all-reduce per optimizer step. Defaults to
                ``None``: all micro-batches count the same.

        Returns:
            What was done; also kept as ``last_result``.

        Raises:
            ConfigError: If ``loss`` is no scalar tensor with a gradient, ``weight`` no such number,
                or some calls have a weight and others have none.
        """
        if self._weights.is_weighted is not (weight is not None):
            self._weights.check_use(is_weighted=weight is not None)
        if weight is not None:
            self._backward_weighed(loss, weight)
        elif (
            self._is_plain
            and not any(name in self.__dict__ for name in _PARTS_OF_UPDATE)
            and self._clipper is None
            and self._precision.scaling is None
            and not (step_kwargs or zero_kwargs)
        ):
            return self._update_plainly(loss)
        else:
            self.backward(self.scale_loss(loss))
        if not self.should_update():
            return self._note_accumulated()
        result = self.step(**step_kwargs) if step_kwargs else self.step()
        self.zero_grad(**zero_kwargs) if zero_kwargs else self.zero_grad()
        return result

    def _update_plainly(self, loss: Tensor) -> StepResult:
        """Do what most runs do in every step, in as few calls."""
        if type(loss) is not Tensor or loss.ndim or not loss.requires_grad:
            check_loss(loss)
        watch = self._watch
        if (watch.probe.grad is None) is not watch.expects_none:
            watch.check(self._model)
        loss.backward()  # type: ignore[no-untyped-call]
        self._micro_batches.done += 1
        self.optimizer.step()
        zero_gradients(self.optimizer)
        watch.expects_none = True if watch.probe.grad is None else None
        self.last_result = STEPPED
        return STEPPED

    def _backward_weighed(self, loss: Tensor, weight: float | Tensor) -> None:
        window, before = self._micro_batches.current_window, self._weights.remember()
        try:
            self.backward(self._weights.weigh(check_loss(loss), weight, window, self._model))
        except BaseException:
            self._weights.go_back(before)  # a micro-batch that is not counted has no weight either
            raise

    def _note_accumulated(self) -> StepResult:
        self._skips.note_accumulated()
        scaling = self._precision.scaling
        self.last_result = ACCUMULATED
        if scaling is not None:
            scaling.let_graph_go()
            self.last_result = ACCUMULATED._replace(loss_scale=scaling.factor())
        return self.last_result

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run backward from ``loss``, with the loss scale where there is one, and count it.

        A gradient exchange that ``optim_context`` put off is back on when this returns or raises.

        Args:
            loss: One element; for accumulation, already divided by ``scale_loss``.
            **kwargs: Passed on to ``Tensor.backward``, such as ``retain_graph``.
        """
        try:
            start: Any = check_loss(loss)
            self._watch.check(self._model)
            scaling = self._precision.scaling
            if scaling is not None:
                start = scaling.scale(start)
            elif self._guard is not None:
                self._guard.note_loss(start)
            # Passing on an empty dict costs as much as a whole call: this runs in every step.
            start.backward(**kwargs) if kwargs else start.backward()
        finally:
            if self._deferred_sync.is_held:
                self._deferred_sync.release()
        self._micro_batches.done += 1
        self._watch.note_backward()

    def unscale_(self) -> None:
        """Take the loss scale out of the gradients now, to see or change them before ``step``.

        ``step`` then does not do it again. Without a loss scaler there is nothing to take out.

        Raises:
            UnsupportedError: In the middle of an accumulation window, whose later micro-batches
                would add gradients that have the scale; or if no ``backward`` of this wrapper ran.

        Example:
            >>> model = torch.nn.Linear(4, 1)
            >>> wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
            >>> wrapper.backward(model(torch.ones(2, 4)).sum())
            >>> wrapper.unscale_()
            >>> model.bias.grad
            tensor([2.])
            >>> _ = wrapper.step(), wrapper.zero_grad()
        """
        if not self.should_update():
            raise UnsupportedError(
                f"unscale_() was called in the middle of an accumulation window of "
                f"{self._micro_batches.window} micro-batches; call it once should_update() is true."
            )
        if self._weights.num_due:
            self._weights.correct_gradients(self.optimizer)
        scaling = self._precision.scaling
        if scaling is not None and have_gradient(self.optimizer):
            scaling.factor()  # raises if no loss was ever scaled
            scaling.unscale()

    @override
    def step(self, **kwargs: Any) -> StepResult:
        """Take the loss scale out, clip, and step the optimizer unless gradients overflowed.

        Args:
            **kwargs: Passed on to ``optimizer.step``.

        Returns:
            What was done; also kept as ``last_result``.

        Raises:
            UnsupportedError: If the loss is scaled, but no ``backward`` of this wrapper ever ran.
            NonFiniteError: On all ranks, if ``max_skips`` steps in a row were not finite, or
                ``clip_grad`` has ``error_if_nonfinite`` and the norm is not.
        """
        if self._weights.num_due:
            self._weights.correct_gradients(self.optimizer)
        self._watch.expects_none = None
        scaling = self._precision.scaling
        if scaling is not None:
            self.last_result = self._step_scaled(scaling, kwargs)
        elif self._guard is not None:
            self.last_result = self._step_guarded(self._guard, kwargs)
        else:
            grad_norm = None if self._clipper is None else self._clip_gradients()
            self.optimizer.step(**kwargs) if kwargs else self.optimizer.step()
            self.last_result = (
                STEPPED if grad_norm is None else STEPPED._replace(grad_norm=grad_norm)
            )
        return self.last_result

    def _step_scaled(self, scaling: LossScaling, kwargs: Mapping[str, Any]) -> StepResult:
        """Leave the step out if gradients overflowed."""
        factor = scaling.factor()
        grad_norm = None if self._clipper is None else self._clip_gradients(scaling)
        stepped, skipped = scaling.step(kwargs, self._model)
        return self._note(StepResult(stepped, skipped, grad_norm, factor))

    def _step_guarded(self, guard: "FiniteGuard", kwargs: Mapping[str, Any]) -> StepResult:
        """Leave the step out if the loss or a gradient is not finite."""
        is_bad = guard.look(self.optimizer, self._model)
        grad_norm = None if self._clipper is None else self._clip_gradients()
        guard.step(self.optimizer, is_bad, kwargs)
        return self._note(StepResult(~is_bad, is_bad, grad_norm, 1.0))

    def _note(self, result: StepResult) -> StepResult:
        """Tell who wants to know if a step was left out."""
        if result.skipped is not False or not self._skips.is_quiet:
            self._skips.note(result.skipped)
            self._skips.tell(self.optimizer, self._model, result.loss_scale)
        return result

    def _clip_gradients(self, scaling: LossScaling | None = None) -> Tensor | None:
        assert self._clipper is not None
        parameters = self._order.parameters_with_gradient(self.optimizer, self._model)
        if not parameters:
            return None
        if scaling is not None:
            scaling.unscale()
        try:
            return self._clipper.clip(parameters, self._model)
        except RuntimeError as error:
            if "sparse" in str(error).lower():
                from ._clipper import check_no_sparse  # noqa: PLC0415 - hardly ever

                check_no_sparse(parameters, self._model)
            raise

    @property
    def clip_grad(self) -> dict[str, Any] | None:
        """A copy of what ``clip_grad`` asked for; ``None`` without clipping."""
        return None if self._clip_grad is None else dict(self._clip_grad)

    def register_gradient_hook(
        self, hook: "Callable[[torch.optim.Optimizer], object]"
    ) -> "RemovableHandle":
        """Call ``hook(optimizer)`` in each step, when the gradients are complete, before clipping.

        They are without the loss scale, which is taken out for the hook also where nothing clips;
        after an overflow they are not finite. The hook may change them in place; to set them to
        zero leaves them zero. It is not called where no parameter has a gradient.

        Args:
            hook: Its result is ignored. For the sake of speed it should read nothing from the
                device.

        Returns:
            A handle, whose ``remove()`` ends the calls.

        Example:
            >>> model = torch.nn.Linear(4, 1)
            >>> wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
            >>> handle = wrapper.register_gradient_hook(lambda _: print(model.bias.grad))
            >>> _ = wrapper.update_params(model(torch.ones(2, 4)).sum())
            tensor([2.])
            >>> handle.remove()
        """
        from ._gradient_hooks import HookedClipper  # noqa: PLC0415 - few need it

        if not isinstance(self._clipper, HookedClipper):
            self._clipper = HookedClipper(self._clipper, self.optimizer)
        return self._clipper.register(hook)

    def zero_grad(self, **kwargs: Any) -> None:
        """Zero the gradients; arguments are those of ``optimizer.zero_grad``."""
        if self._guard is not None:
            self._guard.drop_losses()
        if self._watch.expects_none is False and not self.should_update():
            self._watch.warn_of_zeroing(self._micro_batches.window)
        self.optimizer.zero_grad(**kwargs) if kwargs else zero_gradients(self.optimizer)
        self._watch.note_zeroed()

    def optim_context(self, model: nn.Module) -> AbstractContextManager[object]:
        """Run the forward of one micro-batch; leave it before ``update_params``.

        While micro-batches accumulate, ranks do not exchange gradients. That lasts until the next
        ``backward`` has returned, beyond this context, because sharded models decide in backward.

        Args:
            model: The model as it is called: wrapped by DDP or sharded if it is.
        """
        self._model = model
        if self._micro_batches.window == 1:
            return self._precision.forward_context(model)
        if self._deferred_sync.is_held:  # by a forward that had no backward
            self._deferred_sync.release()
        context = self._precision.forward_context(model)
        if self.should_sync():
            return context
        return DeferredSyncContext(context, self._deferred_sync, model)

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Tell how many micro-batches there are, so that a short last window is weighed right.

        Logs a warning where accumulation will not equal one big batch.

        Args:
            model: The model, searched for BatchNorm layers.
            init_counts: Micro-batches already done, 0 unless training is resumed.
            max_counts: Micro-batches in the whole training.

        Raises:
            ConfigError: If one of them is no integer of at least 0.
        """
        self._micro_batches.expect(init_counts, max_counts)
        self._precision.prepare(model)
        self._weights.restart()
        self._watch.expects_none = None
        warn_about_accumulation(model, init_counts, self._micro_batches.window)

    def should_update(self) -> bool:
        """Whether the optimizer is due now, after the last backward."""
        micro_batches = self._micro_batches
        return micro_batches.window == 1 or micro_batches.ends_window(micro_batches.done)

    def should_sync(self) -> bool:
        """Whether ranks have to exchange gradients in the next backward."""
        return self._micro_batches.ends_window(self._micro_batches.done + 1)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Divide ``loss`` by the number of micro-batches in its window; the last may be short."""
        if self._micro_batches.window == 1:
            return loss
        window = self._micro_batches.current_window
        return loss if window == 1 else check_loss(loss) / window  # backward checks it too

    @override
    def _describe(self) -> dict[str, object]:
        """Return what ``repr`` shows, in order."""
        return {
            "accumulative_counts": self._micro_batches.window,
            "clip_grad": self._clip_grad,
            "optimizer": self.optimizer,
        }


# As they are here: whoever replaces one, in a subclass or an object, has it called.
_PARTS_OF_UPDATE = {
    name: getattr(OptimWrapper, name)
    for name in ("scale_loss", "backward", "should_update", "step", "zero_grad")
}


def _build_clipper(
    clip_grad: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> "AbstractClipper":
    from ._clipping import build_clipper  # noqa: PLC0415 - not every run clips

    return build_clipper(clip_grad, optimizer)
