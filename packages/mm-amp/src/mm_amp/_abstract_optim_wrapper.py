"""What every optimizer wrapper tells of its optimizer, and keeps of it in a checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from ._accumulation import MicroBatches
from ._checks import check_optimizer
from ._gradient_watch import GradientWatch
from ._optim_state import load_optimizer_state, momentum_of
from ._precision import AbstractPrecision, FullPrecision
from ._result import StepResult
from ._skips import SkipLog


class AbstractOptimWrapper(ABC):
    """Everything around a step, none of which runs in it.

    Args:
        optimizer: A ``torch.optim.Optimizer``.
        accumulative_counts: Micro-batches per optimizer step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, accumulative_counts: int) -> None:
        self.optimizer = check_optimizer(optimizer)
        self.last_result: StepResult | None = None
        self._micro_batches = MicroBatches(accumulative_counts)
        self._precision: AbstractPrecision = FullPrecision()
        self._skips = SkipLog()
        self._watch = GradientWatch(optimizer)

    @abstractmethod
    def step(self, **kwargs: Any) -> StepResult:
        """Step the optimizer."""

    def get_lr(self) -> dict[str, list[float]]:
        """Return ``{'lr': [...]}``, one learning rate per parameter group."""
        return {"lr": [group["lr"] for group in self.param_groups]}

    def get_momentum(self) -> dict[str, list[float]]:
        """Return ``{'momentum': [...]}``: each group's momentum, else its first beta, else 0."""
        return {"momentum": [momentum_of(group) for group in self.param_groups]}

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the loss scaler's as ``loss_scaler`` if there is one.

        The tensors are the live ones, as with torch: save or copy before the next step. After a
        skipped step there is also ``skipped_steps``, so that whoever goes on learns of it; where
        only the device knows whether the last one was, this waits for it.
        """
        return {
            **self.optimizer.state_dict(),
            **self._precision.state_dict(),
            **self._skips.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what ``state_dict`` returned, here or in MMEngine, with or without a loss scaler.

        Args:
            state_dict: Left as it is. MMEngine's ``base_param_settings`` is ignored: it repeats
                the optimizer's defaults for MMEngine's logging.

        Raises:
            ConfigError: If it is no optimizer's state.
        """
        load_optimizer_state(self.optimizer, state_dict)
        self._precision.load_state_dict(state_dict)
        self._skips.load_state_dict(state_dict)
        self._watch.expects_none = None  # whoever restores a run may restore gradients too

    @property
    def step_skipped(self) -> bool:
        """Whether the last call found that a step was left out because gradients overflowed.

        Schedules then stay where they are: ``if not wrapper.step_skipped: scheduler.step()``. It
        is about the step of that very call, except with a fused optimizer under a loss scaler:
        only the device knows what that did, so the answer comes with the step after, on all
        ranks alike, and reading it never waits for the step just started.
        """
        return self._skips.has_news

    @property
    def num_skipped(self) -> int:
        """How many steps were left out so far, as far as ``step_skipped`` has told."""
        return self._skips.num_skipped

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, live: a scheduler may write ``lr`` to them."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:
        """The optimizer's default settings."""
        return self.optimizer.defaults

    @property
    def state(self) -> dict[Any, Any]:
        """The optimizer's state, live."""
        return self.optimizer.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the optimizer."""
        self.optimizer.add_param_group(param_group)

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
        return {"accumulative_counts": self._micro_batches.window, "optimizer": self.optimizer}

    def __repr__(self) -> str:
        lines = "".join(f"  {name}={value},\n" for name, value in self._describe().items())
        return f"{type(self).__name__}(\n{lines})"
