"""Where a batch began, to go back to when it cannot be finished."""

from typing import Any

from torch import Tensor

from ._optim_wrapper import OptimWrapper
from ._replay import BufferSnapshots, RandomState, SetAsideGradients


class BatchStart:
    """Everything that training on a batch changes before the optimizer steps, as it was.

    Args:
        wrapper: Its counts, weights and losses are remembered.
        parameters: Their gradients are set aside, so that those of the batch come alone.
        buffers: Of the model; snapshots are taken now.
    """

    def __init__(
        self, wrapper: OptimWrapper, parameters: list[Tensor], buffers: BufferSnapshots
    ) -> None:
        self._wrapper = wrapper
        self._buffers = buffers
        self._weights = wrapper._weights.remember()  # noqa: SLF001
        self._num_done = wrapper._micro_batches.done  # noqa: SLF001
        self._scaling: Any = wrapper._precision.scaling  # noqa: SLF001
        self._last_loss = None if self._scaling is None else self._scaling.last_loss
        self._num_losses = 0 if wrapper._guard is None else wrapper._guard.num_losses  # noqa: SLF001
        self._random = RandomState({parameter.device for parameter in parameters})
        buffers.take()
        self._gradients = SetAsideGradients(parameters)
        wrapper._watch.expects_none = None  # noqa: SLF001 - it is not told what happens to them

    def go_back(self) -> None:
        """Undo what an attempt changed, for another one."""
        self._gradients.drop_new()
        self._wrapper._watch.expects_none = None  # noqa: SLF001
        self._buffers.restore()
        self._random.restore()
        self._wrapper._micro_batches.done = self._num_done  # noqa: SLF001
        if self._wrapper._guard is not None:  # noqa: SLF001
            self._wrapper._guard.drop_losses(self._num_losses)  # noqa: SLF001
        if self._scaling is not None:
            self._scaling.last_loss = self._last_loss

    def leave_no_trace(self) -> None:
        """Undo all, as if the batch had never come."""
        self.go_back()
        self._gradients.restore()
        self._wrapper._weights.go_back(self._weights)  # noqa: SLF001

    def keep(self) -> None:
        """Let the batch count: add its gradients to the earlier ones, and drop the snapshots."""
        self._gradients.add_new()
        self._buffers.release()
