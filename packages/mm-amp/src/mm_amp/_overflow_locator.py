"""Say where gradients stop being finite, when a step was skipped, and stop if that goes on."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ._errors import NonFiniteError
from ._forward_watch import ForwardWatch
from ._gradient_norms import local_norms, norms_on_all_ranks
from ._nonfinite_gradients import describe_nonfinite
from ._parameter_names import OwnedParameter, owned_parameters
from ._skipped_step import SkippedStep

_logger = logging.getLogger(__name__)
_NUM_ALWAYS_TOLD = 8
_SMALLEST_USEFUL_SCALE = 2.0**-16
_TEMPLATE = (
    "An optimizer step was skipped: gradients are not finite. Loss %s, loss scale %g, skipped in a "
    "row: %d. %s%s"
)


class OverflowLocator:
    """Names the first parameters whose gradients are not finite, whenever a step was skipped.

    "First" is as backward meets them: from the loss towards the input, taking the order in which
    the model holds its parameters for that of its forward. While steps are not skipped it does
    nothing. Where the loss itself is not finite, gradients tell nothing; the next forward is then
    watched, to name the first module with a non-finite output, and its dtype.

    It logs at level INFO what belongs to a dynamic loss scale: it starts too large, is halved until
    gradients fit, and tries a larger one every 2000 steps. It logs a WARNING where no loss scale
    can help: the loss is not finite, the scale is at most 1, or it never changes, or there is none.
    The first 8 skipped steps are told, then the 16th, 32nd and so on, as well as the 4th, 8th, 16th
    and so on in a row.

    Args:
        max_skips: So many skipped steps in a row raise ``NonFiniteError``.
        is_adaptive: Whether a loss scale goes down when gradients overflow.
        num_forwards: Forwards per optimizer step.

    Attributes:
        loss: What the last backward started from, without the loss scale.
    """

    def __init__(self, max_skips: int, *, is_adaptive: bool = False, num_forwards: int = 1) -> None:
        self._max_skips = max_skips
        self._is_adaptive = is_adaptive
        self._num_forwards = num_forwards
        self._num_told = 0
        self._watch = ForwardWatch()
        self._norms: Tensor | None = None
        self.loss: Tensor | None = None

    def look(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember the gradients' norms as they are now: clipping may spread a NaN, or hide it."""
        self._norms = local_norms(p for group in optimizer.param_groups for p in group["params"])

    def __call__(self, step: SkippedStep) -> None:
        """Take in a skipped step.

        Raises:
            NonFiniteError: If it was the last of ``max_skips`` in a row; on all ranks together.
        """
        norms, self._norms = self._norms, None
        self.tell(step, norms, self.loss)

    def tell(self, step: SkippedStep, norms: Tensor | None, loss: Tensor | None) -> None:
        """Take in a skipped step, with the gradients' norms and the loss where they were kept.

        Raises:
            NonFiniteError: If it was the last of ``max_skips`` in a row; on all ranks together.
        """
        self._num_told += 1
        value = math.nan if loss is None else float(loss)
        is_last = step.num_in_a_row >= self._max_skips
        if is_last or self._is_worth_telling(step.num_in_a_row):
            # What ranks exchange in here depends on counts only, which are equal on all of them.
            found = _describe_gradients(step, norms)
            module = self._watch.first_bad()
            if is_last:
                raise NonFiniteError(self._complain(step, found, module, loss, value))
            _logger.log(self._level(step, loss, value), *_report(step, found, module, loss, value))
        if loss is not None and not math.isfinite(value) and isinstance(step.model, nn.Module):
            self._watch.start(step.model, self._num_forwards)

    def _is_worth_telling(self, num_in_a_row: int) -> bool:
        return (
            self._num_told <= _NUM_ALWAYS_TOLD
            or _is_power_of_two(self._num_told)
            or (num_in_a_row >= 4 and _is_power_of_two(num_in_a_row))
        )

    def _level(self, step: SkippedStep, loss: Tensor | None, value: float) -> int:
        is_loss_finite = loss is None or math.isfinite(value)
        may_adapt = self._is_adaptive and float(step.loss_scale) > 1.0
        return logging.INFO if may_adapt and is_loss_finite else logging.WARNING

    def _complain(
        self,
        step: SkippedStep,
        found: tuple[str, OwnedParameter | None],
        module: str | None,
        loss: Tensor | None,
        value: float,
    ) -> str:
        template, *values = _report(step, found, module, loss, value)
        return f"{str(template) % tuple(values)} {self._remedy(step, found[1], module)}"

    def _remedy(self, step: SkippedStep, first: OwnedParameter | None, module: str | None) -> str:
        layer = module.partition(" ")[0] if module else first.module if first else ""
        ways = ["lower the learning rate or set clip_grad", "look at the data of these steps"]
        if isinstance(step.loss_scale, Tensor):  # there is a loss scaler, so it is float16
            island = f"fp32_modules=[{layer!r}]" if layer else "fp32_modules"
            ways = [
                "use dtype='bfloat16', which has the range of float32",
                f"keep that layer in float32 with {island}",
                *ways,
            ]
        return (
            f"These were {step.num_in_a_row} in a row and max_skips is {self._max_skips}, so "
            f"training stops. Resume from a checkpoint and do one of: {'; '.join(ways)}."
        )


def enough_skips(options: Mapping[str, Any]) -> int:
    """Return after how many skips in a row a loss scale has become too small to be the cause.

    Args:
        options: Arguments of torch's ``GradScaler``.
    """
    start = options.get("init_scale", 2.0**16) / _SMALLEST_USEFUL_SCALE
    backoff = options.get("backoff_factor", 0.5)
    return max(_NUM_ALWAYS_TOLD, math.ceil(math.log(start) / -math.log(backoff)))


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _report(
    step: SkippedStep,
    found: tuple[str, OwnedParameter | None],
    module: str | None,
    loss: Tensor | None,
    value: float,
) -> tuple[Any, ...]:
    """Return a logging template and its values."""
    seen = f" The first module whose output is not finite: {module}." if module else ""
    return (
        _TEMPLATE,
        "unknown" if loss is None else f"{value:g}",
        float(step.loss_scale),
        step.num_in_a_row,
        found[0],
        seen,
    )


def _describe_gradients(
    step: SkippedStep, norms: Tensor | None
) -> tuple[str, OwnedParameter | None]:
    """Return a sentence on the non-finite gradients, and the first of their parameters."""
    owned = owned_parameters(step.optimizer, step.model)
    parameters = [one.parameter for one in owned]
    found = local_norms(parameters) if norms is None else norms
    values = norms_on_all_ranks(found, parameters, step.model).tolist()
    said, first = describe_nonfinite(owned, values)
    return said or _say_why_none(step), first


def _say_why_none(step: SkippedStep) -> str:
    if step.is_late:
        return (
            "Its gradients are gone, as a fused optimizer tells one step late; those of the step "
            "after are finite."
        )
    return "No gradient is infinite or NaN any more: clipping has changed them."
