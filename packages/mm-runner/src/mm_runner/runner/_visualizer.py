"""What hooks and scripts give the writers of a run besides what it logs by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

import mm_dist
from mm_runner.errors import ConfigError
from mm_runner.registry import short_repr
from mm_runner.reporting import as_numbers

from ._logs import plain_config

if TYPE_CHECKING:
    from mm_runner.runner import Runner

    from ._logs import RunLogs

__all__ = ["RunVisualizer"]

_PHASES = ("train", "val", "test")
# What a record has besides scalars; of these, a caller may say where it stands.
_RESERVED = ("mode", "epoch", "step", "axis")
_PLACE = ("epoch", "step")


class RunVisualizer:
    """Takes scalars, images and configurations, under MMEngine's names; nothing is drawn.

    Every process may call it: the main one writes.

    Args:
        runner: The run.
        logs: Of the run.

    Example:
        >>> runner.visualizer.add_scalar("val/margin", 0.25, step=runner.iter)  # doctest: +SKIP
    """

    def __init__(self, runner: Runner, logs: RunLogs) -> None:
        self._runner, self._logs = runner, logs

    def add_scalar(self, name: str, value: float | Tensor, step: int = 0) -> None:
        """Write one scalar; see :meth:`add_scalars`."""
        _check_scalar(name, value)
        self.add_scalars({name: value}, step)

    def add_scalars(
        self,
        scalar_dict: Mapping[str, float | Tensor],
        step: int = 0,
        file_path: str | None = None,  # noqa: ARG002 - MMEngine's signature
    ) -> None:
        """Write scalars to ``scalars.jsonl`` and all writers; this waits for the device of tensors.

        Args:
            scalar_dict: Numbers, or tensors of one element, by name. One that begins with
                ``train/``, ``val/`` or ``test/`` is of that phase; the record of others has
                ``"other"`` as its ``mode``.
            step: Training steps done. Defaults to 0; ``scalar_dict["step"]`` wins, and
                ``scalar_dict["epoch"]`` over the epoch of the run.
            file_path: Accepted for MMEngine's signature; all scalars are in ``scalars.jsonl``.

        Raises:
            ConfigError: If ``scalar_dict`` is no dict, ``step`` or a value no number, or a name is
                that of something else in a record.
        """
        if not isinstance(scalar_dict, Mapping):
            raise ConfigError(
                "visualizer.add_scalars: a dict of numbers by name is needed, got "
                f"{short_repr(scalar_dict)}."
            )
        scalars = {name: value for name, value in scalar_dict.items() if name not in _PLACE}
        for name, value in scalars.items():
            _check_scalar(name, value)
        given = {"step": step, **scalar_dict}
        place = {name: _as_count(name, given[name]) for name in _PLACE if name in given}
        step = place.pop("step")
        if not mm_dist.is_main_process():
            return
        by_phase: dict[str, dict[str, Any]] = {}
        for name, number in zip(scalars, as_numbers(list(scalars.values())), strict=True):
            phase, _, bare = name.partition("/")
            known = phase in _PHASES and bare
            plain = number.item() if hasattr(number, "item") else number  # NumPy's
            by_phase.setdefault(phase if known else "other", {})[bare if known else name] = plain
        for phase, numbers in by_phase.items():
            self._runner.write_scalars(phase, {**place, **numbers}, step=step)

    def add_image(self, name: str, image: Any, step: int = 0) -> None:
        """Give an image to the writers that keep images.

        Args:
            name: Of the image.
            image: An array or a tensor of shape ``(height, width)`` or ``(height, width,
                channels)``, with 1, 3 or 4 channels, red first.
            step: Training steps done. Defaults to 0.

        Raises:
            ConfigError: If no writer of the run keeps images, ``image`` is of another shape, or
                ``step`` no number.
        """
        step = _as_count("step", step)
        if "add_image" not in self._logs.abilities:
            raise ConfigError(
                f"visualizer.add_image({name!r}): none of the writers of this run keeps images. "
                "TensorBoardWriter and WandbWriter do (log_writers=['TensorBoardWriter']), and so "
                "does one of your own with add_image(name, image, step)."
            )
        shape = tuple(getattr(image, "shape", ()))
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
            raise ConfigError(
                f"visualizer.add_image({name!r}): an array or a tensor of the shape (height, "
                f"width) or (height, width, 1, 3 or 4 channels) is needed, got {shape}."
            )
        if mm_dist.is_main_process():
            # The caller may go on to draw into it.
            copied = image.detach().cpu().clone() if isinstance(image, Tensor) else image.copy()
            self._logs.give("add_image", name, copied, step)

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Write keys of a configuration to ``config.yaml``, and to the writers that keep it.

        The run's own is there from the beginning.

        Raises:
            ConfigError: If ``config`` is no dict.
        """
        if not isinstance(config, Mapping):
            raise ConfigError(f"visualizer.add_config: a dict is needed, got {short_repr(config)}.")
        plain = plain_config(config)
        self._logs.dump_config(plain)
        self._logs.give("add_config", plain)


def _check_scalar(name: Any, value: Any) -> None:
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"visualizer.add_scalars: the name of a scalar is needed, got {short_repr(name)}."
        )
    phase, _, bare = name.partition("/")
    if name in _RESERVED or (phase in _PHASES and bare in _RESERVED):
        raise ConfigError(
            f"visualizer.add_scalars: {name!r} cannot be the name of a scalar; a record has it "
            "for something else."
        )
    size = value.numel() if isinstance(value, Tensor) else getattr(value, "size", 1)
    is_number = isinstance(value, (Tensor, int, float)) or hasattr(value, "item")
    if not is_number or size != 1:
        raise ConfigError(
            f"visualizer.add_scalars: {name!r} needs a number, or a tensor of one element, got "
            f"{short_repr(value)}."
        )


def _as_count(name: str, value: Any) -> int:
    try:
        if not isinstance(value, (str, bytes)):
            return int(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch's own for many elements
        pass
    raise ConfigError(f"visualizer: {name} needs a number, got {short_repr(value)}.")
