"""MMEngine's visualizer: scalars, images and configurations for the writers of a run."""

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
    from ._logs import RunLogs
    from ._runner import Runner

__all__ = ["RunVisualizer"]

_PHASES = ("train", "val", "test")
# Keys of a record that are no scalars.
_RESERVED = ("mode", "epoch", "step", "axis")


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
        self.add_scalars({name: value, "step": step})

    def add_scalars(
        self,
        scalar_dict: Mapping[str, float | Tensor],
        step: int = 0,
        file_path: str | None = None,  # noqa: ARG002 - MMEngine's signature
    ) -> None:
        """Write scalars to ``scalars.jsonl`` and all writers; this waits for the device of tensors.

        Args:
            scalar_dict: Numbers, or tensors of one element, by name. The names of a phase begin
                with ``train/``, ``val/`` or ``test/``; the ``mode`` of others is ``"other"``.
            step: Training steps done. Defaults to 0; ``scalar_dict["step"]`` wins, and
                ``scalar_dict["epoch"]`` over the epoch of the run.
            file_path: Accepted for MMEngine's signature; all scalars are in ``scalars.jsonl``.

        Raises:
            ConfigError: If ``scalar_dict`` is no dict, a value no number, or a name reserved.
        """
        if not isinstance(scalar_dict, Mapping):
            raise ConfigError(
                "visualizer.add_scalars: a dict of numbers by name is needed, got "
                f"{short_repr(scalar_dict)}."
            )
        place = {key: int(scalar_dict[key]) for key in ("step", "epoch") if key in scalar_dict}
        step = place.pop("step", int(step))
        scalars: dict[Any, Any] = {
            key: one for key, one in scalar_dict.items() if key not in ("step", "epoch")
        }
        by_phase: dict[str, dict[str, Any]] = {}
        for name, value in scalars.items():
            phase, _, bare = str(name).partition("/")
            phase, bare = (phase, bare) if phase in _PHASES and bare else ("other", name)
            if not isinstance(name, str) or bare in ("", *_RESERVED):
                raise ConfigError(
                    f"visualizer.add_scalars: {short_repr(name)} cannot be the name of a scalar; "
                    f"give text other than {', '.join(_RESERVED)}."
                )
            size = value.numel() if isinstance(value, Tensor) else getattr(value, "size", 1)
            is_number = isinstance(value, (Tensor, int, float)) or hasattr(value, "item")
            if not is_number or size != 1:
                raise ConfigError(
                    f"visualizer.add_scalars: {name!r} needs a number, or a tensor of one element, "
                    f"got {short_repr(value)}."
                )
            by_phase.setdefault(phase, {})[bare] = value
        if not mm_dist.is_main_process():
            return
        for phase, values in by_phase.items():
            numbers = as_numbers(list(values.values()))
            # NumPy's have item() too.
            plain = [one.item() if hasattr(one, "item") else one for one in numbers]
            record = {**place, **dict(zip(values, plain, strict=True))}
            self._runner.write_scalars(phase, record, step=step)

    def add_image(self, name: str, image: Any, step: int = 0) -> None:
        """Give an image to the writers that keep images.

        Args:
            name: Of the image.
            image: An array or a tensor of shape ``(height, width)`` or ``(height, width,
                channels)``, with 1, 3 or 4 channels, red first.
            step: Training steps done. Defaults to 0.

        Raises:
            ConfigError: If no writer of the run keeps images, or ``image`` is of another shape.
        """
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
            # The caller may keep drawing into it.
            copied = image.detach().cpu().clone() if isinstance(image, Tensor) else image.copy()
            self._logs.give("add_image", name, copied, int(step))

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add keys of a configuration to ``config.yaml``, and to the writers that keep it."""
        plain = plain_config(config)
        self._logs.dump_config(plain)
        self._logs.give("add_config", plain)
