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

from mm_amp._checks import check_count
from mm_amp._errors import ConfigError, ConfigTypeError, UnsupportedError
from mm_amp._gradients._sync import SyncDeferral, synchronizing_modules
from mm_amp._gradients._watch import GradientWatch
from mm_amp._torch_private import zero_gradients
from mm_amp._wrapper._optimizer_proxy import OptimizerProxy
from mm_amp._wrapper._result import ACCUMULATED, STEPPED, StepResult

if TYPE_CHECKING:
    from mm_amp._gradients._weights import WindowWeights
    from mm_amp._scaling._locator import OverflowLocator
    from mm_amp._scaling._loss_scaling import LossScaling
    from mm_amp._scaling._skips import FiniteGuard, SkipLog

_logger = logging.getLogger(__name__)
_NO_CONTEXT = nullcontext()  # holds no state, so all forwards can share it
_SCALER_KEY, _SKIPS_KEY = "loss_scaler", "skipped_steps"  # the first is MMEngine's name
_NOT_TORCH = (_SCALER_KEY, _SKIPS_KEY, "base_param_settings")
_EXPECTED_STATE = "pass what state_dict() of a wrapper or of a torch optimizer returned."
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class OptimWrapper(OptimizerProxy):
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
        accumulative_counts: Micro-batches per optimizer step.
        inner_count: Micro-batches done so far, counted by ``backward``.
        clip_grad: A copy of ``clip_grad`` as given; ``None`` without clipping.

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

    _shown: tuple[str, ...] = ()  # in repr, before what all wrappers have

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        accumulative_counts: int = 1,
        clip_grad: Mapping[str, Any] | None = None,
        *,
        max_skips: int | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, OptimWrapper):
            raise ConfigTypeError(
                f"optimizer is {type(optimizer).__name__}; it must be an optimizer of torch itself,"
                " such as torch.optim.SGD(model.parameters(), lr=0.1)."
            )
        # torch's __init__ would make groups and a state of its own.
        self.optimizer = optimizer
        self.last_result: StepResult | None = None
        self.accumulative_counts = check_count("accumulative_counts", accumulative_counts, least=1)
        self.inner_count = 0
        self._total: int | None = None  # micro-batches of the training, where it is known
        self._is_weighted: bool | None = None  # None before the first micro-batch
        self._weights: WindowWeights | None = None
        self._autocast: Callable[[], AbstractContextManager[object]] | None = None
        self._scaling: LossScaling | None = None  # set by AmpOptimWrapper for float16
        self.clip_grad: dict[str, Any] | None = None
        self._clipper: Any = None
        if clip_grad is not None:
            from mm_amp._gradients._clipping import build_clipper  # noqa: PLC0415 - not every run clips

            self._clipper = build_clipper(clip_grad, optimizer)
            self.clip_grad = dict(clip_grad)
        self._gradient_hooks: OrderedDict[int, Callable[..., object]] = OrderedDict()
        self._model: Any = None  # of the last forward
        self._sync_deferral: SyncDeferral | None = None  # None where no gradients are exchanged
        self._places: dict[Tensor, int] = {}  # of the model's parameters, in their order
        self._watch = GradientWatch(optimizer)
        self._has_warned: set[str] = set()
        self._max_skips = max_skips if max_skips is None else check_count("max_skips", max_skips, 1)
        self._guard: FiniteGuard | None = None
        self._skips: SkipLog | None = None
        self._locator: OverflowLocator | None = None
        if max_skips is not None:
            from mm_amp._scaling import _skips  # noqa: PLC0415 - rarely needed

            self._guard, self._skips = _skips.FiniteGuard(), _skips.SkipLog()

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
        is_weighted = weight is not None
        if is_weighted is not self._is_weighted:
            if self._is_weighted is not None:
                given, before = ("has a", "no") if is_weighted else ("has no", "a")
                raise ConfigError(
                    f"this micro-batch {given} weight, and those before had {before} weight; give "
                    "a weight in every call, update_params(loss, weight=n), or in none."
                )
            self._is_weighted = is_weighted
        if weight is None:
            self.backward(self.scale_loss(loss))
        else:
            if self._weights is None:
                from mm_amp._gradients._weights import WindowWeights  # noqa: PLC0415 - rarely used

                self._weights = WindowWeights()
            window = self._current_window()
            weighed, share = self._weights.weigh(_check_loss(loss), weight, window, self._model)
            self.backward(weighed)
            self._weights.count(share)
        if self.should_update():
            result = self.step(**step_kwargs) if step_kwargs else self.step()
            self.zero_grad(**zero_kwargs) if zero_kwargs else self.zero_grad()
            return result
        self.last_result = ACCUMULATED
        if self._skips is not None:
            self._skips.has_news = False
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
            start: Any = _check_loss(loss)
            self._watch.check()
            if self._scaling is not None:
                start = self._scaling.scale(start)
            elif self._guard is not None:
                self._guard.losses.append(start.detach())
            start.backward(**kwargs) if kwargs else start.backward()
        finally:
            if self._sync_deferral is not None:
                self._sync_deferral.end()
        self.inner_count += 1
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
                f"{self.accumulative_counts} micro-batches; call it once should_update() is true."
            )
        if self._weights is not None and self._weights.num_due:
            self._weights.correct_gradients(self.optimizer)
        if self._scaling is not None and self._scaling.has_gradient():
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
        if self._weights is not None and self._weights.num_due:
            self._weights.correct_gradients(self.optimizer)
        self._watch.expects_none = None
        scaling, guard = self._scaling, self._guard
        if scaling is None and guard is None:
            grad_norm = self._finish_gradients()
            self.optimizer.step(**kwargs) if kwargs else self.optimizer.step()
            result = STEPPED if grad_norm is None else STEPPED._replace(grad_norm=grad_norm)
            self.last_result = result
            return result
        stepped: bool | Tensor
        skipped: bool | Tensor
        if scaling is not None:
            factor: float | Tensor = scaling.factor()
            grad_norm = self._finish_gradients()
            stepped, skipped = scaling.step(kwargs)
        else:
            assert guard is not None
            factor = 1.0
            skipped = guard.is_bad(self.optimizer, self._model)
            grad_norm = self._finish_gradients()
            stepped = not skipped
            if stepped:
                self.optimizer.step(**kwargs)
        assert self._skips is not None
        if self._skips.note(skipped):
            self._report_skip(factor)
        self.last_result = StepResult(stepped, skipped, grad_norm, factor)
        return self.last_result

    def _finish_gradients(self) -> Tensor | None:
        """Unscale, call gradient hooks and clip, if there are hooks or clipping."""
        if self._clipper is None and not self._gradient_hooks:
            return None
        # Read in each step: a user may have changed the groups.
        parameters = [one for group in self.optimizer.param_groups for one in group["params"]]
        parameters = [one for one in parameters if one.grad is not None and one.requires_grad]
        if not parameters:
            return None
        if self._scaling is not None:
            self._scaling.unscale()
        for hook in tuple(self._gradient_hooks.values()):
            hook(self.optimizer)
        if self._clipper is None:
            return None
        # Norms sum in the model's order, as in a loop by hand.
        parameters.sort(key=lambda one: self._places.get(one, len(self._places)))
        norm: Tensor | None = self._clipper.clip(parameters)
        return norm

    def _report_skip(self, loss_scale: float | Tensor) -> None:
        """Locate and log a skipped step; raise ``NonFiniteError`` after ``max_skips``."""
        scaling, guard = self._scaling, self._guard
        if self._locator is None:
            from mm_amp._scaling._locator import OverflowLocator  # noqa: PLC0415 - rarely needed

            self._locator = OverflowLocator(
                self._max_skips,
                is_adaptive=scaling is not None and scaling.static is None,
                num_forwards=self.accumulative_counts,
            )
        loss, norms = None if scaling is None else scaling.last_loss, None
        if scaling is None and guard is not None:
            loss, norms = guard.loss, guard.norms
        assert self._skips is not None
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
                self._warn_once(
                    "zero_grad() was called in the middle of an accumulation window of %d "
                    "micro-batches: the gradients of the earlier ones are lost, and the step of "
                    "this window is too small. update_params() zeroes gradients after each step.",
                    self.accumulative_counts,
                )
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
        context = _NO_CONTEXT if self._autocast is None else self._autocast()
        deferral = self._sync_deferral
        if deferral is None:
            return context
        deferral.end()  # of a forward that had no backward
        return context if self.should_sync() else deferral.around(context)

    def _prepare(self, model: Any) -> None:
        """Check another model than that of the last forward."""
        parts = model.modules() if isinstance(model, nn.Module) else ()
        # By name: importing the class takes seconds.
        if any(type(part).__name__ == "FullyShardedDataParallel" for part in parts):
            raise UnsupportedError(
                "the model has parts in torch's first FSDP, FullyShardedDataParallel, which is not "
                "supported; shard it with torch.distributed.fsdp.fully_shard (torch 2.6)."
            )
        if self._sync_deferral is not None:
            self._sync_deferral.end()
        modules = synchronizing_modules(model) if self.accumulative_counts > 1 else []
        self._sync_deferral = SyncDeferral(modules) if modules else None
        self._model = model
        in_model = model.parameters() if isinstance(model, nn.Module) else ()
        self._places = {one: place for place, one in enumerate(in_model)}

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
        done, total = check_count("init_counts", init_counts), check_count("max_counts", max_counts)
        self.inner_count, self._total = done, total
        self._is_weighted = self._weights = None
        self._watch.expects_none = None
        if done % self.accumulative_counts != 0:
            _logger.warning(
                "Training starts at micro-batch %d, which accumulative_counts=%d does not divide: "
                "the gradients of the earlier micro-batches of this window are missing, unless "
                "the end of a training has stepped with them.",
                done,
                self.accumulative_counts,
            )
        if self.accumulative_counts > 1 and any(
            isinstance(one, _BATCH_NORMS) for one in model.modules()
        ):
            _logger.warning(
                "The model has BatchNorm layers and accumulative_counts is %d: their statistics "
                "come from one micro-batch each, so the result differs from one big batch.",
                self.accumulative_counts,
            )

    def should_update(self) -> bool:
        """Whether the optimizer is due now, after the last backward."""
        return self.accumulative_counts == 1 or self._ends_window(self.inner_count)

    def should_sync(self) -> bool:
        """Whether ranks have to exchange gradients in the next backward."""
        return self.accumulative_counts == 1 or self._ends_window(self.inner_count + 1)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Divide ``loss`` by the number of micro-batches in its window; the last may be short."""
        if self.accumulative_counts == 1:
            return loss
        window = self._current_window()
        return loss if window == 1 else _check_loss(loss) / window

    def _ends_window(self, done: int) -> bool:
        """Whether the optimizer is due once ``done`` micro-batches are done."""
        if self._total is None or done <= self._total:
            return done % self.accumulative_counts == 0 or done == self._total
        self._warn_once(
            "There are more micro-batches than max_counts=%d: full windows of %d are counted from "
            "there on. Give initialize_count_status the micro-batches of all epochs together, or "
            "call it again with the remaining number.",
            self._total,
            self.accumulative_counts,
        )
        return (done - self._total) % self.accumulative_counts == 0

    def _current_window(self) -> int:
        """Return the number of micro-batches in the window of the next backward."""
        if self._total is None:
            return self.accumulative_counts
        remainder = self._total % self.accumulative_counts
        in_last_window = self._total - remainder <= self.inner_count < self._total
        return remainder if in_last_window else self.accumulative_counts

    def _warn_once(self, message: str, *arguments: int) -> None:
        if message not in self._has_warned:
            self._has_warned.add(message)
            _logger.warning(message, *arguments)

    @override
    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the loss scaler's as ``loss_scaler`` if there is one.

        The tensors are the live ones, as with torch: save or copy before the next step. After a
        skipped step there is also ``skipped_steps``, for a resumed run to know of it; where only
        the device knows whether the last one was skipped, this waits for it.
        """
        state: dict[str, Any] = dict(self.optimizer.state_dict())
        if self._scaling is not None:
            state[_SCALER_KEY] = self._scaling.scaler.state_dict()
        skips = None if self._skips is None else self._skips.state()
        if skips is not None:
            state[_SKIPS_KEY] = skips
        return state

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
        saved = state.get(_SCALER_KEY)  # MMEngine saves an empty dict for a disabled scaler
        if saved and self._scaling is not None:
            self._scaling.load_state_dict(saved)
        elif saved:
            _logger.info("The state holds a loss scaler, which is not used: losses are not scaled.")
        elif self._scaling is not None:
            _logger.info("The state holds no loss scaler; the loss scale starts at init_scale.")
        if self._skips is not None:
            self._skips.load(state.get(_SKIPS_KEY))
        self._watch.expects_none = None  # a restored run may restore gradients too

    @property
    def clip_grad_kwargs(self) -> dict[str, Any] | None:
        """:attr:`clip_grad` without its ``type``, under MMEngine's name."""
        if self.clip_grad is None:
            return None
        return {key: value for key, value in self.clip_grad.items() if key != "type"}

    @property
    def step_skipped(self) -> bool:
        """Whether the last call found that a step was skipped because gradients overflowed.

        Schedules then do not advance: ``if not wrapper.step_skipped: scheduler.step()``. It is
        about the step of that very call, except with a fused optimizer under a loss scaler: only
        the device knows the answer, so it comes with the next step, on all ranks alike, and
        reading it never waits for the step just started.
        """
        return self._skips is not None and self._skips.has_news

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps that are known so far, see ``step_skipped``."""
        return 0 if self._skips is None else self._skips.num_skipped

    @override
    def __repr__(self) -> str:
        names = (*self._shown, "accumulative_counts", "clip_grad", "optimizer")
        lines = "".join(f"  {name}={getattr(self, name)},\n" for name in names)
        return f"{type(self).__name__}(\n{lines})"


def _check_loss(loss: object) -> Tensor:
    """Return ``loss`` if it is a one-element tensor with a gradient; reads metadata only."""
    if not isinstance(loss, Tensor):
        raise ConfigTypeError(
            f"loss is a {type(loss).__name__}; it must be one tensor: add several losses up first."
        )
    if loss.numel() != 1:
        raise ConfigError(
            f"loss has shape {tuple(loss.shape)}; it must have one element: "
            "reduce it with loss.mean() or loss.sum()."
        )
    if not loss.requires_grad:
        raise ConfigError(
            "loss does not require a gradient: was the forward run under torch.no_grad(), "
            "was the loss detached, or is every parameter frozen?"
        )
    return loss
