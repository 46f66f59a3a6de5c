"""Base of all loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mm_runner.run_view import RunView


def alias(name: str) -> Any:
    """Return a property for an attribute, under the name that MMEngine's loops use."""
    return property(attrgetter(name), lambda loop, value: setattr(loop, name, value))


class BaseLoop(ABC):
    """Runs over batches; a subclass registered in ``LOOPS`` is given as ``type``.

    A training loop that derives from this, and not from :class:`AbstractTrainLoop`, calls the hooks
    and has ``epoch``, ``iter``, ``max_epochs`` and ``max_iters``; runs resume at these counts.

    Args:
        runner: The run.
        dataloader: A loader or its config.

    Attributes:
        runner: See above.
        dataloader: The loader.
    """

    _runner = alias("runner")

    def __init__(self, runner: RunView, dataloader: Any) -> None:
        self.runner = runner
        if isinstance(dataloader, Mapping):
            dataloader = runner.build_dataloader(dataloader, seed=runner.seed)
        self.dataloader = dataloader

    @abstractmethod
    def run(self) -> Any:
        """Run the loop; a loop of validation or test returns the metrics."""
