"""A hook that notes what every step of a run depends on and gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from typing_extensions import override

from mm_runner.checkpoint import clean_name, rng_state
from mm_runner.errors import ConfigError
from mm_runner.hooks import Hook
from mm_runner.model import unwrap_model
from mm_runner.optim import named_wrappers
from mm_runner.runner._fingerprint import fingerprint

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

__all__ = ["EndOfRecordError", "Recorder", "StepRecord"]

_AT_MOST, _BEYOND = 5, 5


class EndOfRecordError(Exception):
    """Ends a run after the last step that is compared."""


class StepRecord(NamedTuple):
    """A step: fingerprints of its batch and of the generators before it, its rates and outputs."""

    data: str
    generators: dict[str, str]
    rates: list[float]
    outputs: dict[str, Any]


class Recorder(Hook):
    """Records a run; saves it at one step, and ends it at another.

    Neither is done while gradients are accumulated, which are in no checkpoint, but after the next
    optimizer step.

    Args:
        directory: Where to save ``stop.pth`` and ``end.pth``.
        at_step: When to save the former, ``None`` to choose a step within an epoch; 0 never.
        steps: When to save the latter and end; ``None`` for some steps later.
    """

    priority = "LOWEST"

    def __init__(self, directory: Path, at_step: int | None, steps: int | None) -> None:
        self.directory = directory
        self.at_step, self.steps = at_step, steps
        self.seed: int | None = None
        self.records: dict[int, StepRecord] = {}
        # Of the parameters, in the order of each optimizer.
        self.names: dict[str, list[str]] = {}
        self._is_saved = at_step == 0

    @override
    def before_train(self, runner: RunView) -> None:
        self.names, self.seed = _parameter_names(runner), runner.seed
        window = max(
            getattr(one, "accumulative_counts", 1)
            for one in named_wrappers(runner.optim_wrapper).values()
        )
        if self.at_step is None:
            length = getattr(getattr(runner.train_loop, "batches", None), "length", None)
            within = _AT_MOST if length is None else min(max(length // 2, 1), _AT_MOST)
            self.at_step = -(-within // window) * window
        if self.steps is None:
            steps = self.at_step + max(_BEYOND, window)
            self.steps = min(-(-steps // window) * window, runner.max_iters)
        if not self._is_saved and not 0 < self.at_step < self.steps <= runner.max_iters:
            raise ConfigError(
                f"verify_resume: a stop after step {self.at_step} and an end after step "
                f"{self.steps} were asked for; the training has {runner.max_iters} steps. Let "
                "0 < at_step < steps, and train_cfg allow that many."
            )

    @override
    def before_train_iter(self, runner: RunView, batch_idx: int, data_batch: Any = None) -> None:
        generators = rng_state(runner.device)
        self.records[runner.iter + 1] = StepRecord(
            fingerprint(data_batch),
            {name: fingerprint(state) for name, state in generators.items()},
            [float(group["lr"]) for group in _groups(runner)],
            {},
        )

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        step = runner.iter + 1
        if isinstance(outputs, dict):
            self.records[step].outputs.update(
                {name: _number(value) for name, value in outputs.items()}
            )
        if runner.holds_gradients:
            return
        assert self.at_step is not None
        assert self.steps is not None
        if not self._is_saved and step >= self.at_step:
            self._is_saved, self.at_step = True, step
            runner.save_checkpoint(self.directory, "stop.pth", mark_as_latest=False)
        elif step >= self.steps:
            self.steps = step
            runner.save_checkpoint(self.directory, "end.pth", mark_as_latest=False)
            raise EndOfRecordError


def _parameter_names(runner: RunView) -> dict[str, list[str]]:
    names = {id(one): name for name, one in unwrap_model(runner.model).named_parameters()}
    return {
        wrapper_name: [
            clean_name(names.get(id(parameter), "?"))
            for group in wrapper.param_groups
            for parameter in group["params"]
        ]
        for wrapper_name, wrapper in named_wrappers(runner.optim_wrapper).items()
    }


def _groups(runner: RunView) -> list[Any]:
    wrappers = named_wrappers(runner.optim_wrapper).values()
    return [group for wrapper in wrappers for group in wrapper.param_groups]


def _number(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else fingerprint(value)
    return value if isinstance(value, (bool, int, float, str)) else fingerprint(value)
