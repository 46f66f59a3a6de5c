"""Descriptors of the Runner's attributes that are parts of a run, or are read from one."""

from __future__ import annotations

from typing import Any

from mm_runner.errors import ConfigError

__all__ = ["LoopNumber", "LoopPart", "OfLoop", "TrainingPart"]


class TrainingPart:
    """A part that may be assigned before ``train()``, which else builds it; ``None`` until then."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Any, owner: type | None = None) -> Any:
        return self if run is None else vars(run).get(self._name)

    def __set__(self, run: Any, value: Any) -> None:
        if vars(run).get("is_training"):
            raise ConfigError(
                f"{self._name} was assigned while training, which uses the one that it began with. "
                "Assign it before train()."
            )
        vars(run)[self._name] = value
        run.assigned_parts.add(self._name)


class LoopPart(TrainingPart):
    """A loop that is built when it is first read; ``None`` if its phase is not configured."""

    def __init__(self, phase: str) -> None:
        self._phase = phase

    def __get__(self, run: Any, owner: type | None = None) -> Any:
        if run is None:
            return self
        parts = vars(run)
        if self._name not in parts:
            loop = run.recipe.build_loop(run, self._phase)
            if loop is None:
                return None
            parts[self._name] = loop
        return parts[self._name]

    def __set__(self, run: Any, value: Any) -> None:
        if self._phase == "train":
            super().__set__(run, value)
        else:
            vars(run)[self._name] = value


class LoopNumber:
    """A number of the training loop, which reading it does not build.

    Args:
        default: Its value without a training loop. ``epoch`` and ``iter`` are those of the
            checkpoint that the weights are from.
    """

    def __init__(self, default: int = 0) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Any, owner: type | None = None) -> int:
        loop = vars(run).get("train_loop")
        if loop is None:
            return run.loaded_progress.get(self._name, self._default)  # type: ignore[no-any-return]
        return getattr(loop, self._name)  # type: ignore[no-any-return]


class OfLoop:
    """An attribute of a loop, under the loop's phase and its own name: ``val_dataloader``."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._phase, _, self._name = name.partition("_")

    def __get__(self, run: Any, owner: type | None = None) -> Any:
        if run is None:
            return self
        loop = getattr(run, f"{self._phase}_loop")
        if loop is None:
            run.recipe.check_phase(self._phase, f"{self._phase}_{self._name}", of=AttributeError)
        return getattr(loop, self._name)

    def __set__(self, run: Any, value: Any) -> None:
        raise ConfigError(
            f"{self._phase}_{self._name} was assigned to the Runner; it is the loop's: assign "
            f"runner.{self._phase}_loop.{self._name}."
        )
