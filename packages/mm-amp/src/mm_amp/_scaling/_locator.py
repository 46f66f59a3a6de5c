"""Overflow locator: name the gradients and the module where values stop being finite."""

import logging
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mm_amp._errors import NonFiniteError
from mm_amp._gradients._norms import local_norms, norms_on_all_ranks
from mm_amp._names import NamedParameter, optimized_parameters, walk
from mm_amp._precision._nested import tensors_in
from mm_amp._scaling._skips import SkipLog
from mm_amp._torch_private import is_compiled_in_place

_logger = logging.getLogger(__name__)
_NUM_SHOWN = 3
_DEFAULT_MAX_SKIPS = 32  # after which a dynamic loss scale is too small to be the cause
_MANY_OUTPUTS = 8  # per module and forward


class OverflowLocator:
    """Logs where gradients stop being finite when a step was skipped; raises after too many.

    Gradients are named as backward meets them: from the loss towards the input, taking the order of
    the model's parameters for that of its forward. Where the loss itself is not finite, the next
    forward is watched, to name the first module with a non-finite output.

    The level is INFO while a dynamic loss scale can still adapt, else WARNING. Logged are the
    first, second, fourth, eighth skipped step and so on.
    """

    def __init__(self, max_skips: int | None, *, is_adaptive: bool, num_forwards: int) -> None:
        self._max_skips = max_skips or _DEFAULT_MAX_SKIPS
        self._is_adaptive = is_adaptive
        self._num_forwards = num_forwards
        self._num_skipped = 0
        self._watch = ForwardWatch()

    def report(
        self,
        optimizer: torch.optim.Optimizer,
        model: Any,
        skips: SkipLog,
        *,
        loss_scale: float | Tensor,
        loss: Tensor | None,
        norms: Tensor | None = None,
    ) -> None:
        """Log a skipped step, before its gradients are zeroed.

        ``loss`` and ``norms`` are without the loss scale and from before clipping, if kept. After
        ``max_skips`` in a row all ranks raise ``NonFiniteError`` together.
        """
        self._num_skipped += 1
        value = math.nan if loss is None else float(loss)
        is_last = skips.num_in_a_row >= self._max_skips
        # Ranks exchange norms in here, depending on counts only, which are equal on all of them.
        if is_last or self._num_skipped & (self._num_skipped - 1) == 0:
            named = optimized_parameters(optimizer, model)
            parameters = [one.parameter for one in named]
            norms = local_norms(parameters) if norms is None else norms
            found, first = _describe_nonfinite(
                named, norms_on_all_ranks(norms, parameters, model).tolist()
            )
            if not found and skips.is_late:
                found = "Its gradients are gone: a fused optimizer reports a skip one step late."
            module = self._watch.first_bad()
            message = (
                "An optimizer step was skipped: gradients are not finite. "
                f"Loss {'unknown' if loss is None else f'{value:g}'}, loss scale "
                f"{float(loss_scale):g}, skipped in a row: {skips.num_in_a_row}. "
                f"{found or 'No gradient is infinite or NaN any more: clipping has changed them.'}"
            )
            if module:
                message += f" The first module whose output is not finite: {module}."
            if is_last:
                ways = ["lower the learning rate or set clip_grad", "check the data of these steps"]
                if isinstance(loss_scale, Tensor):  # so it is float16
                    layer = module.partition(" ")[0] if module else first.module if first else ""
                    island = f"fp32_modules=[{layer!r}]" if layer else "fp32_modules"
                    ways = [
                        "use dtype='bfloat16', which has the range of float32",
                        f"keep that layer in float32 with {island}",
                        *ways,
                    ]
                raise NonFiniteError(
                    f"{message} These were {self._max_skips} in a row and max_skips is "
                    f"{self._max_skips}, so training stops. Resume from a checkpoint and do one "
                    f"of: {'; '.join(ways)}."
                )
            is_loss_finite = loss is None or math.isfinite(value)
            may_adapt = self._is_adaptive and is_loss_finite and float(loss_scale) > 1.0
            _logger.log(logging.INFO if may_adapt else logging.WARNING, "%s", message)
        if loss is not None and not math.isfinite(value) and isinstance(model, nn.Module):
            self._watch.start(model, self._num_forwards)


def _describe_nonfinite(
    named: list[NamedParameter], norms: list[float]
) -> tuple[str, NamedParameter | None]:
    """Return a sentence on the gradients that are not finite, and the first of their parameters.

    The parameters are in the order of the forward. Without such gradients: ``("", None)``.
    """
    pairs = list(zip(named, norms, strict=True))
    bad = [(one, norm) for one, norm in reversed(pairs) if not math.isfinite(norm)]
    if not bad:
        return "", None
    shown = []
    for one, norm in bad[:_NUM_SHOWN]:
        owner = f" of {one.module or 'the model'} ({one.module_type})" if one.module_type else ""
        shown.append(f"{one.name}{owner}, {one.parameter.dtype}, norm {norm:g}")
    extent = f"{len(bad)} of {sum(one.parameter.requires_grad for one in named)}"
    return f"Not finite, from the loss on: {'; '.join(shown)} ({extent} gradients).", bad[0][0]


class ForwardWatch:
    """Finds the first module of a forward with a non-finite output; compiled ones from outside.

    Only ``first_bad`` waits for the device.
    """

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._seen: list[tuple[str, Tensor]] = []
        self._num_forwards_left = 0
        self._max_seen = 0

    def start(self, model: nn.Module, num_forwards: int) -> None:
        """Watch the next ``num_forwards`` forwards of ``model``."""
        self.stop()
        self._seen = []
        self._num_forwards_left = num_forwards
        self._max_seen = _MANY_OUTPUTS * num_forwards * sum(1 for _ in model.modules())
        compiled: list[str] = []  # prefixes: a hook inside would be in the compiled graph
        for name, full_name, module in walk(model):
            if any(full_name.startswith(prefix) for prefix in compiled):
                continue
            is_compiled = is_compiled_in_place(module)
            if (
                is_compiled or type(module).__name__ == "OptimizedModule"
            ):  # by torch.compile(module)
                compiled.append(f"{full_name}." if full_name else "")
            if not is_compiled:
                self._handles.append(module.register_forward_hook(partial(self._look, name)))
        self._handles.append(model.register_forward_hook(self._end_forward))

    def stop(self) -> None:
        """Remove the hooks from the model; the outputs seen are kept."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def first_bad(self) -> str | None:
        """Describe the first module with a non-finite output; ``None`` if there was none."""
        if not self._seen:
            return None
        flags = torch.stack([flag.cpu() for _, flag in self._seen]).tolist()
        return next((name for (name, _), bad in zip(self._seen, flags, strict=True) if bad), None)

    def _look(self, name: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        if len(self._seen) > self._max_seen:  # a part is called again and again, never the model
            self.stop()
            return
        with torch.no_grad():
            for tensor in tensors_in(output):
                if tensor.is_floating_point():
                    place = f"{name or 'the model'} ({type(module).__name__}), {tensor.dtype}"
                    self._seen.append((place, ~tensor.detach().isfinite().all()))

    def _end_forward(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self._num_forwards_left -= 1
        if self._num_forwards_left <= 0:
            self.stop()
