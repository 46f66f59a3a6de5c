"""Train on a batch in parts, as small as memory asks for."""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ._batch_parts import BatchSplitter, check_parts
from ._batch_start import BatchStart
from ._checks import check_loss, check_positive_int
from ._ddp_parts import DdpParts, check_model
from ._errors import ConfigError, ConfigTypeError, MicroBatchError
from ._optim_wrapper import OptimWrapper
from ._out_of_memory import free_memory, is_out_of_memory
from ._replay import BufferSnapshots
from ._result import StepResult

_logger = logging.getLogger(__name__)

# What became of an attempt; over the ranks, the worst counts.
_DONE, _OUT_OF_MEMORY, _FAILED = range(3)
_REDUCTIONS = ("mean", "sum")


@dataclass(frozen=True)
class _Attempt:
    outcome: int
    num_samples: int = 0
    largest_part: int = 0
    loss: Tensor | None = None
    error: Exception | None = None
    message: str = ""


class MicroBatcher:
    """Trains on each batch in parts that fit into memory, found by trying.

    If memory runs out, on any rank, the parts are halved and the same batch is done again with the
    same random numbers. What the failed attempt changed is undone: gradients (those of earlier
    batches in an accumulation window stay), buffers such as a batch norm's statistics, and the
    generators of torch. The size found is kept. Gradients are those of the batch as a whole, as
    each part counts by its samples; batch norm alone sees parts.

    Under ``DistributedDataParallel`` all ranks go through the same sizes. Forward and backward run
    without any exchange between ranks, who then agree whether all went well, and exchange gradients
    when the optimizer is due: after backward, and not while it runs. Ranks whose exchange is inside
    forward or backward would wait for ever, so ``fully_shard``, ``FullyShardedDataParallel``,
    ``SyncBatchNorm``, communication hooks and ``static_graph`` are refused. Create it on all ranks.

    Args:
        optim_wrapper: An ``OptimWrapper`` or ``AmpOptimWrapper``.
        model: The model as it is called: wrapped by DDP if it is.
        start: Samples in a part at most, to begin with, per rank; parts are as equal as can be.
            Defaults to ``None``: the whole batch.
        grow_after: Double the parts again, up to ``start``, after that many batches in a row
            without trouble. Each time that turns out too large, the wait doubles. Defaults to
            ``None``: never.
        loss_reduction: ``'mean'`` if the loss is a mean over the samples it is given (the default),
            ``'sum'`` if those of parts add up, such as a sum divided by a number known beforehand.
        split: Called as ``split(batch, size)``; returns the parts as pairs of part and number of
            samples, all in one if ``size`` is ``None``. Defaults to cutting tensors, and lists with
            one entry per sample, along dim 0, in dicts, tuples, lists and dataclasses of any depth;
            a list of dicts with equal keys is one dict per sample.

    Attributes:
        size: Samples in a part at most, now; ``None`` for the whole batch.
        last_loss: The last batch's loss as a whole, detached, on the device.

    Raises:
        ConfigError: If an argument has a value that cannot work.
        UnsupportedError: If ranks exchange data within forward or backward.

    Example:
        >>> model = torch.nn.Linear(4, 1)
        >>> wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> batcher = MicroBatcher(wrapper, model, start=4)
        >>> for batch in [(torch.ones(10, 4), torch.ones(10, 1))]:
        ...     result = batcher.update_params(
        ...         batch, lambda part: (model(part[0]) - part[1]).square().mean()
        ...     )
        >>> result.stepped, batcher.size
        (True, 4)
    """

    def __init__(
        self,
        optim_wrapper: OptimWrapper,
        model: nn.Module,
        *,
        start: int | None = None,
        grow_after: int | None = None,
        loss_reduction: str = "mean",
        split: Callable[[Any, int | None], Iterable[tuple[Any, int]]] | None = None,
    ) -> None:
        if not isinstance(optim_wrapper, OptimWrapper):
            raise ConfigTypeError(
                f"optim_wrapper is a {type(optim_wrapper).__name__}; it must be an OptimWrapper or "
                "AmpOptimWrapper, of an OptimWrapperDict one of its values."
            )
        if not isinstance(model, nn.Module):
            raise ConfigTypeError(f"model is a {type(model).__name__}; it must be a Module.")
        if loss_reduction not in _REDUCTIONS:
            raise ConfigError(f"loss_reduction is {loss_reduction!r}; it is 'mean' or 'sum'.")
        self._wrapper = optim_wrapper
        self._model = model
        self._start = None if start is None else check_positive_int("start", start)
        self._grow_after = (
            None if grow_after is None else check_positive_int("grow_after", grow_after)
        )
        self._is_mean = loss_reduction == "mean"
        self._split = BatchSplitter() if split is None else split
        self._ranks = DdpParts(model)
        self._buffers = BufferSnapshots(model)
        self._num_good = 0
        self._has_just_grown = False
        self._is_used = False
        self.size = self._start
        self.last_loss: Tensor | None = None

    def update_params(
        self,
        batch: Any,
        compute_loss: Callable[[Any], Tensor],
        *,
        weight: float | Tensor | None = None,
        step_kwargs: Mapping[str, Any] | None = None,
        zero_kwargs: Mapping[str, Any] | None = None,
    ) -> StepResult:
        """Do forward and backward of a batch and, when a window is full, step the optimizer.

        Takes the place of ``optim_context`` and ``update_params`` of the wrapper.

        Args:
            batch: As the loader gives it.
            compute_loss: Called with a part of ``batch``, under the wrapper's autocast; returns the
                loss, one element. It may be called again with the same part, so it should change
                nothing but what is undone (see the class), and not exchange data between ranks.
            weight: Of the batch as a whole, as of ``OptimWrapper.update_params``.
            step_kwargs: Passed on to ``optimizer.step``.
            zero_kwargs: Passed on to ``optimizer.zero_grad``.

        Returns:
            What was done, as by ``OptimWrapper.update_params``.

        Raises:
            MicroBatchError: On all ranks, if not even the smallest parts fit, and on ranks without
                trouble of their own if another rank failed otherwise.
        """
        if not self._is_used:
            self._is_used = True
            check_model(self._model)  # it may have been sharded since
        start = BatchStart(self._wrapper, self._parameters(), self._buffers)
        try:
            factor = self._factor(weight)
            with self._ranks.kept_silent():
                attempt = self._repeat_until_done(batch, compute_loss, factor, start)
            start.keep()
        except BaseException:
            start.leave_no_trace()
            raise
        self.last_loss = attempt.loss
        if self._wrapper.should_sync():
            self._ranks.exchange_gradients()
        return self._end_batch(step_kwargs or {}, zero_kwargs or {})

    def _end_batch(
        self, step_kwargs: Mapping[str, Any], zero_kwargs: Mapping[str, Any]
    ) -> StepResult:
        self._wrapper._micro_batches.done += 1  # noqa: SLF001
        if not self._wrapper.should_update():
            return self._wrapper._note_accumulated()  # noqa: SLF001
        result = self._wrapper.step(**step_kwargs)
        self._wrapper.zero_grad(**zero_kwargs)
        return result

    def _factor(self, weight: float | Tensor | None) -> Any:
        """Return what the batch's loss counts in its accumulation window."""
        weights, window = self._wrapper._weights, self._wrapper._micro_batches.current_window  # noqa: SLF001
        weights.check_use(is_weighted=weight is not None)
        if weight is None:
            return 1 / window
        one = torch.ones((), device=self._parameters()[0].device)
        return weights.weigh(one, weight, window, self._model)

    def _parameters(self) -> list[Tensor]:
        groups = self._wrapper.param_groups
        everything = [*self._model.parameters(), *(p for group in groups for p in group["params"])]
        return list({id(parameter): parameter for parameter in everything}.values())

    def _repeat_until_done(
        self, batch: Any, compute_loss: Callable[[Any], Tensor], factor: Any, start: BatchStart
    ) -> _Attempt:
        while True:
            attempt = self._attempt(batch, compute_loss, factor)
            outcome, num_samples, largest_part = self._ranks.agree(
                attempt.outcome, attempt.num_samples, attempt.largest_part
            )
            if outcome == _DONE:
                self._note_success(num_samples)
                return attempt
            if attempt.error is not None:
                raise attempt.error
            if outcome == _FAILED:
                raise MicroBatchError(
                    "another rank failed in this batch, see its own error; nothing of it was used."
                )
            start.go_back()
            free_memory(self._parameters()[0].device)
            self._halve(largest_part, attempt.message)

    def _attempt(self, batch: Any, compute_loss: Callable[[Any], Tensor], factor: Any) -> _Attempt:
        num_samples, largest_part = 0, 0
        with ExitStack() as cleanup:
            cleanup.callback(self._wrapper._deferred_sync.release)  # noqa: SLF001
            try:
                parts = check_parts(self._split(batch, self.size))
                num_samples = sum(num for _, num in parts)
                largest_part = max(num for _, num in parts)
                loss = self._train_on(parts, num_samples, compute_loss, factor)
            except Exception as error:  # noqa: BLE001 - raised again once the ranks know
                if not is_out_of_memory(error):
                    return _Attempt(_FAILED, error=error)
                # The error itself would keep alive what its frames hold.
                return _Attempt(_OUT_OF_MEMORY, num_samples, largest_part, message=str(error))
        return _Attempt(_DONE, num_samples, largest_part, loss)

    def _train_on(
        self,
        parts: list[tuple[Any, int]],
        num_samples: int,
        compute_loss: Callable[[Any], Tensor],
        factor: Any,
    ) -> Tensor | None:
        total: Tensor | None = None
        for part, num in parts:
            with self._wrapper.optim_context(self._model):
                loss = check_loss(compute_loss(part))
            share = num / num_samples if self._is_mean else 1.0
            counted = loss.detach() * share
            total = counted if total is None else total + counted
            is_whole = share == 1.0 and isinstance(factor, float) and factor == 1.0
            whole = loss if is_whole else loss * (factor * share)
            del loss
            self._wrapper.backward(whole)
            self._wrapper._micro_batches.done -= 1  # noqa: SLF001 - only the whole batch counts
        return total

    def _halve(self, tried: int, message: str) -> None:
        if tried <= 1:
            raise MicroBatchError(
                f"memory ran out with parts of one sample ({message or 'on another rank'}); use a "
                "smaller model or samples, activation checkpointing, or a lower precision."
            )
        if self.size is not None and tried > self.size:  # smaller parts would never come
            raise MicroBatchError(
                f"memory ran out with parts of {tried} samples, though split was asked for at most "
                f"{self.size} ({message or 'on another rank'}); let it cut smaller ones."
            )
        self.size = (tried + 1) // 2
        if self._has_just_grown and self._grow_after is not None:
            self._grow_after *= 2
        level = logging.INFO if self._has_just_grown else logging.WARNING
        self._has_just_grown = False
        self._num_good = 0
        _logger.log(
            level,
            "Memory ran out with parts of %d samples%s; this batch is repeated in parts of %d.",
            tried,
            "" if message else " on another rank",
            self.size,
        )

    def _note_success(self, num_samples: int) -> None:
        self._has_just_grown = False
        self._num_good += 1
        if self._grow_after is None or self.size is None or self._num_good < self._grow_after:
            return
        largest = num_samples if self._start is None else self._start
        if self.size < largest:
            self.size = min(2 * self.size, largest)
            self._has_just_grown = True
        self._num_good = 0
