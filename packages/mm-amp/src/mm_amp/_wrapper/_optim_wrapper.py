"""Optimizer wrapper: accumulate, clip, step and zero, in the right order."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from mm_amp._checks import check_count, check_loss, check_optimizer
from mm_amp._errors import ConfigError, ConfigTypeError, UnsupportedError
from mm_amp._gradients._accumulation import MicroBatches, WindowWeights
from mm_amp._gradients._sync import SyncDeferral
from mm_amp._gradients._watch import GradientWatch
from mm_amp._model._parameters import ModelOrder, have_gradient, refuse_first_fsdp
from mm_amp._scaling._loss_scaling import SCALER_KEY, LossScaling
from mm_amp._scaling._skips import SKIPS_KEY, FiniteGuard, SkipLog
from mm_amp._torch_private import zero_gradients
from mm_amp._wrapper._result import ACCUMULATED, STEPPED, StepResult

if TYPE_CHECKING:
    from mm_amp._scaling._locator import OverflowLocator

NO_CONTEXT = nullcontext()  # holds no state, so all forwards can share it
_logger = logging.getLogger(__name__)
_DEFAULT_MAX_SKIPS = 32  # after which torch's dynamic loss scale is too small to be the cause
_NOT_TORCH = (SCALER_KEY, SKIPS_KEY, "base_param_settings")
_EXPECTED_STATE = "pass what state_dict() of a wrapper or of a torch optimizer returned."


def _method_of_optimizer(name: str) -> Any:
    def method(self: "OptimWrapper", *args: Any, **kwargs: Any) -> Any:
        return getattr(self.optimizer, name)(*args, **kwargs)

    method.__name__ = name
    method.__doc__ = f"Call ``{name}`` of the optimizer."
    return method


class OptimWrapper(torch.optim.Optimizer):
    """Train with any torch optimizer: gradient accumulation, clipping, and one call per step.

    Names and arguments are those of MMEngine's ``OptimWrapper``. It is an optimizer to torch's
    schedulers, whose parameter groups, state and hooks are those of the optimizer given. Nothing
    in a step copies from the device, so the host can run ahead of it, unless an argument says so.

    Args:
        optimizer: A ``torch.optim.Optimizer``.
        accumulative_counts: Micro-batches per optimizer step. Defaults to 1.
        clip_grad: ``dict(max_norm=1.0)`` to clip by the total norm (further keys: ``norm_type``,
            default 2; ``error_if_nonfinite``, which waits for the device in every step, and raises
            ``NonFiniteError``); ``dict(type='value', clip_value=0.5)`` to clamp each element;
            ``dict(type='agc', clip_factor=0.01)`` to clip each unit of each parameter by its own
            norm (further key: ``eps``, default 0.001); or ``None`` (the default). The dict is not
            changed.
        max_skips: Leave out a step whose loss or gradients are not finite, on any rank. A warning
            names the first parameters; ``max_skips`` in a row raise ``NonFiniteError``. Each step
            waits for the device, and takes one norm per gradient, and one scalar all-reduce if
            ranks average gradients. Defaults to ``None``: nothing is checked.

    Attributes:
        optimizer: The optimizer given.
        last_result: Result of the last ``update_params`` or ``step``; ``None`` before the first.

    Raises:
        ConfigError: If an argument has an invalid value.

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
        if isinstance(optimizer, OptimWrapper):
            raise ConfigTypeError(
                f"optimizer is an {type(optimizer).__name__} already; give the torch optimizer in "
                "it, which is its attribute optimizer."
            )
        # torch's __init__ would make groups and a state of its own.
        self.optimizer = check_optimizer(optimizer)
        self.last_result: StepResult | None = None
        self._micro_batches = MicroBatches(accumulative_counts)
        self._weights = WindowWeights()
        self._sync_deferral = SyncDeferral()
        self._scaling: LossScaling | None = None  # set by AmpOptimWrapper for float16
        self._clip_grad, self._clipper = None, None
        if clip_grad is not None:
            from mm_amp._gradients._clipping import build_clipper  # noqa: PLC0415 - not every run clips

            self._clipper = build_clipper(clip_grad, optimizer)
            self._clip_grad = dict(clip_grad)
        self._gradient_hooks: OrderedDict[int, Callable[..., object]] = OrderedDict()
        self._order = ModelOrder()
        self._model: nn.Module | None = None  # of the last forward
        self._watch = GradientWatch(optimizer)
        self._skips = SkipLog()
        self._max_skips = max_skips if max_skips is None else check_count("max_skips", max_skips, 1)
        self._guard = None if max_skips is None else FiniteGuard()
        self._locator: OverflowLocator | None = None

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
            step_kwargs: Arguments of ``optimizer.step``.
            zero_kwargs: Arguments of ``optimizer.zero_grad``.
            weight: Number of samples or tokens that ``loss`` is the mean over on this rank: at
                least 0, or a 0-d tensor, whose value is not read. Micro-batches of all ranks then
                count by their weight, as they would in one big batch; where it is 0, the loss may
                be NaN, but not its gradients. Give it in every call or in none, on all ranks
                alike; it costs one scalar all-reduce per optimizer step. Defaults to ``None``: all
                micro-batches count the same.

        Returns:
            The result, also kept as ``last_result``.

        Raises:
            ConfigError: If ``loss`` is no scalar tensor with a gradient, ``weight`` no such number,
                or some calls have a weight and others have none.
        """
        if self._weights.is_weighted is not (weight is not None):
            self._weights.check_use(is_weighted=weight is not None)
        if weight is None:
            self.backward(self.scale_loss(loss))
        else:
            window = self._micro_batches.current_window
            weighed, share = self._weights.weigh(check_loss(loss), weight, window, self._model)
            self.backward(weighed)
            self._weights.count(share)
        if not self.should_update():
            return self._note_accumulated()
        result = self.step(**step_kwargs) if step_kwargs else self.step()
        self.zero_grad(**zero_kwargs) if zero_kwargs else self.zero_grad()
        return result

    def _note_accumulated(self) -> StepResult:
        self._skips.note_accumulated()
        self.last_result = ACCUMULATED
        if self._scaling is not None:
            self._scaling.detach_last_loss()
            self.last_result = ACCUMULATED._replace(loss_scale=self._scaling.factor())
        return self.last_result

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Run backward from ``loss``, with the loss scale where there is one, and count it.

        A deferred gradient exchange is on again when this returns or raises.

        Args:
            loss: One element; for accumulation, already divided by ``scale_loss``.
            **kwargs: Arguments of ``Tensor.backward``, such as ``retain_graph``.
        """
        try:
            start: Any = check_loss(loss)
            self._watch.check()
            if self._scaling is not None:
                start = self._scaling.scale(start)
            elif self._guard is not None:
                self._guard.losses.append(start.detach())
            start.backward(**kwargs) if kwargs else start.backward()
        finally:
            if self._sync_deferral.is_active:
                self._sync_deferral.end()
        self._micro_batches.done += 1
        self._watch.note_backward()

    def unscale_(self) -> None:
        """Divide the gradients by the loss scale now, to see or change them before ``step``.

        ``step`` then does not do it again. Without a loss scaler the gradients stay unchanged.

        Raises:
            UnsupportedError: In the middle of an accumulation window, whose later micro-batches
                would add scaled gradients; or if no ``backward`` of this wrapper ran.

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
        if self._scaling is not None and have_gradient(self.optimizer):
            self._scaling.factor()  # raises if no loss was ever scaled
            self._scaling.unscale()

    @override
    def step(self, **kwargs: Any) -> StepResult:  # type: ignore[override]
        """Unscale the gradients, clip them, and step the optimizer unless they overflowed.

        Args:
            **kwargs: Arguments of ``optimizer.step``.

        Returns:
            The result, also kept as ``last_result``.

        Raises:
            UnsupportedError: If the loss is scaled, but no ``backward`` of this wrapper ever ran.
            NonFiniteError: On all ranks, if ``max_skips`` steps in a row were not finite, or
                ``clip_grad`` has ``error_if_nonfinite`` and the norm is not.
        """
        if self._weights.num_due:
            self._weights.correct_gradients(self.optimizer)
        self._watch.expects_none = None
        if self._scaling is not None:
            factor = self._scaling.factor()
            grad_norm = self._finish_gradients()
            stepped, skipped = self._scaling.step(kwargs)
            self.last_result = self._note(StepResult(stepped, skipped, grad_norm, factor))
        elif self._guard is not None:
            is_bad = self._guard.is_bad(self.optimizer, self._model)
            grad_norm = self._finish_gradients()
            if not is_bad:
                self.optimizer.step(**kwargs)
            self.last_result = self._note(StepResult(not is_bad, is_bad, grad_norm, 1.0))
        else:
            has_more = self._clipper is not None or self._gradient_hooks
            grad_norm = self._finish_gradients() if has_more else None
            self.optimizer.step(**kwargs) if kwargs else self.optimizer.step()
            self.last_result = (
                STEPPED if grad_norm is None else STEPPED._replace(grad_norm=grad_norm)
            )
        return self.last_result

    def _finish_gradients(self) -> Tensor | None:
        """Unscale, call gradient hooks and clip, if there are hooks or clipping."""
        if self._clipper is None and not self._gradient_hooks:
            return None
        parameters = self._order.parameters_with_gradient(self.optimizer, self._model)
        if not parameters:
            return None
        if self._scaling is not None:
            self._scaling.unscale()
        for hook in tuple(self._gradient_hooks.values()):
            hook(self.optimizer)
        return None if self._clipper is None else self._clipper.clip(parameters, self._model)

    def _note(self, result: StepResult) -> StepResult:
        """Count the step, and report it if it was skipped."""
        if result.skipped is not False or not self._skips.is_quiet:
            self._skips.note(result.skipped)
            if self._skips.has_news:
                self._report_skip(result.loss_scale)
        return result

    def _report_skip(self, loss_scale: float | Tensor) -> None:
        """Locate and log a skipped step; raise ``NonFiniteError`` after ``max_skips``."""
        scaling, guard = self._scaling, self._guard
        if self._locator is None:
            from mm_amp._scaling._locator import OverflowLocator  # noqa: PLC0415 - rarely needed

            self._locator = OverflowLocator(
                self._max_skips or _DEFAULT_MAX_SKIPS,
                is_adaptive=scaling is not None and scaling.static is None,
                num_forwards=self._micro_batches.window,
            )
        loss, norms = (guard.loss, guard.norms) if guard is not None else (None, None)
        if scaling is not None:
            loss, norms = scaling.last_loss, None
        self._locator.report(
            self.optimizer, self._model, self._skips, loss_scale=loss_scale, loss=loss, norms=norms
        )

    @override
    def zero_grad(self, **kwargs: Any) -> None:  # type: ignore[override]
        """Zero the gradients; arguments are those of ``optimizer.zero_grad``."""
        if self._guard is not None:
            self._guard.losses.clear()
        if self._watch.expects_none is False:  # a backward has had no step of this wrapper
            if self.should_update():
                self._watch.check()
            else:
                self._watch.warn_of_zeroing(self._micro_batches.window)
        self.optimizer.zero_grad(**kwargs) if kwargs else zero_gradients(self.optimizer)
        self._watch.note_zeroed()

    def register_gradient_hook(
        self, hook: Callable[[torch.optim.Optimizer], object]
    ) -> RemovableHandle:
        """Call ``hook(optimizer)`` in each step, when the gradients are complete, before clipping.

        They are without the loss scale, which is removed for the hook also where nothing clips;
        after an overflow they are not finite. The hook may change them in place, or zero them. It
        is not called where no parameter has a gradient.

        Args:
            hook: Its result is ignored. Reading values from the device in it costs time.

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
        handle = RemovableHandle(self._gradient_hooks)
        self._gradient_hooks[handle.id] = hook
        return handle

    def optim_context(self, model: nn.Module) -> AbstractContextManager[object]:
        """Run the forward of one micro-batch; leave it before ``update_params``.

        While micro-batches accumulate, ranks do not exchange gradients. That lasts until the next
        ``backward`` has returned, beyond this context, because sharded models decide in backward.

        Args:
            model: The model as it is called: wrapped by DDP or sharded if it is.
        """
        if model is not self._model:
            self._prepare(model)
        if self._sync_deferral.is_active:  # by a forward that had no backward
            self._sync_deferral.end()
        context = self._forward_context()
        if self._micro_batches.window == 1 or self.should_sync():
            return context
        return self._sync_deferral.around(context, model)

    def _prepare(self, model: Any) -> None:
        """Check another model than that of the last forward."""
        refuse_first_fsdp(model)
        self._model = model

    def _forward_context(self) -> AbstractContextManager[object]:
        return NO_CONTEXT

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Set the number of micro-batches, so that a short last window is weighted right.

        Logs a warning where accumulation will not equal one big batch.

        Args:
            model: The model, searched for BatchNorm layers.
            init_counts: Micro-batches already done, 0 unless training is resumed.
            max_counts: Micro-batches in the whole training.

        Raises:
            ConfigError: If one of them is no integer of at least 0.
        """
        self._micro_batches.expect(init_counts, max_counts)
        self._weights.reset()
        self._watch.expects_none = None
        self._micro_batches.warn_about_differences(model)

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
        return loss if window == 1 else check_loss(loss) / window

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the loss scaler's as ``loss_scaler`` if there is one.

        The tensors are the live ones, as with torch: save or copy before the next step. After a
        skipped step there is also ``skipped_steps``, for a resumed run to know of it; where only
        the device knows whether the last one was skipped, this waits for it.
        """
        scaler = {} if self._scaling is None else {SCALER_KEY: self._scaling.scaler.state_dict()}
        return {**self.optimizer.state_dict(), **scaler, **self._skips.state_dict()}

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a ``state_dict()``, of this package or of MMEngine, with or without a loss scaler.

        Args:
            state_dict: Not changed. MMEngine's ``base_param_settings`` is ignored: it repeats
                the optimizer's defaults for MMEngine's logging.

        Raises:
            ConfigError: If it is no optimizer's state.
        """
        state = state_dict
        if not isinstance(state, Mapping):
            raise ConfigTypeError(f"the state is a {type(state).__name__}; {_EXPECTED_STATE}")
        missing = [key for key in ("state", "param_groups") if key not in state]
        if missing:
            raise ConfigError(
                f"the state has no {' and no '.join(missing)}, only {', '.join(map(str, state))}; "
                f"{_EXPECTED_STATE}"
            )
        self.optimizer.load_state_dict({key: state[key] for key in state if key not in _NOT_TORCH})
        saved = state.get(SCALER_KEY)  # MMEngine saves an empty dict for a disabled scaler
        if saved and self._scaling is not None:
            self._scaling.load_state_dict(saved)
        elif saved:
            _logger.info("The state holds a loss scaler, which is not used: losses are not scaled.")
        elif self._scaling is not None:
            _logger.info("The state holds no loss scaler; the loss scale starts afresh.")
        self._skips.load_state_dict(state)
        self._watch.expects_none = None  # a restored run may restore gradients too

    def get_lr(self) -> dict[str, list[float]]:
        """Return ``{'lr': [...]}``, one learning rate per parameter group."""
        return {"lr": [group["lr"] for group in self.param_groups]}

    def get_momentum(self) -> dict[str, list[float]]:
        """Return ``{'momentum': [...]}``: each group's momentum, else its first beta, else 0."""
        groups = self.param_groups
        return {"momentum": [g.get("momentum", g.get("betas", (0.0,))[0]) for g in groups]}

    @property
    def step_skipped(self) -> bool:
        """Whether the last call found that a step was skipped because gradients overflowed.

        Schedules then do not advance: ``if not wrapper.step_skipped: scheduler.step()``. It is
        about the step of that very call, except with a fused optimizer under a loss scaler: only
        the device knows the answer, so it comes with the next step, on all ranks alike, and
        reading it never waits for the step just started.
        """
        return self._skips.has_news

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps that are known so far, see ``step_skipped``."""
        return self._skips.num_skipped

    # Properties, as load_state_dict() gives the optimizer new groups and a new state.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's parameter groups, live: a scheduler may write ``lr`` to them."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The optimizer's default settings."""
        return self.optimizer.defaults

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """The optimizer's state, live."""
        return self.optimizer.state

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the optimizer."""
        self.optimizer.add_param_group(param_group)

    register_step_pre_hook = _method_of_optimizer("register_step_pre_hook")
    register_step_post_hook = _method_of_optimizer("register_step_post_hook")
    register_state_dict_pre_hook = _method_of_optimizer("register_state_dict_pre_hook")
    register_state_dict_post_hook = _method_of_optimizer("register_state_dict_post_hook")
    register_load_state_dict_pre_hook = _method_of_optimizer("register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = _method_of_optimizer("register_load_state_dict_post_hook")

    @override
    def __getstate__(self) -> dict[str, Any]:
        # A scheduler replaces step() by a function that refers to this very object.
        return {name: value for name, value in vars(self).items() if name != "step"}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    @property
    def accumulative_counts(self) -> int:
        """Micro-batches per optimizer step."""
        return self._micro_batches.window

    @property
    def inner_count(self) -> int:
        """Micro-batches done so far, counted by ``backward``."""
        return self._micro_batches.done

    @property
    def clip_grad(self) -> dict[str, Any] | None:
        """A copy of ``clip_grad`` as given; ``None`` without clipping."""
        return None if self._clip_grad is None else dict(self._clip_grad)

    def _describe(self) -> dict[str, object]:
        """Return the content of ``repr``, in order."""
        return {
            "accumulative_counts": self._micro_batches.window,
            "clip_grad": self._clip_grad,
            "optimizer": self.optimizer,
        }

    @override
    def __repr__(self) -> str:
        lines = "".join(f"  {name}={value},\n" for name, value in self._describe().items())
        return f"{type(self).__name__}(\n{lines})"
