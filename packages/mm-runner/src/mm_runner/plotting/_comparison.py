"""Curves of several runs on the same axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from mm_runner.errors import ConfigError, did_you_mean

from ._curves import is_rate, read_scalars
from ._figure import new_figure, save_figure

__all__ = ["plot_runs"]

# What a record says of itself, and what no curve is drawn of unless it is asked for.
_POSITION = ("mode", "epoch", "step")
_ON_REQUEST = ("time", "data_time", "memory")
_SUFFIXES = (".png", ".svg")
_COLUMNS = 2
# Points of so few records are marked.
_FEW = 40

_Curve = tuple[Sequence[int], Sequence[float]]


def plot_runs(
    work_dirs: Sequence[str | Path],
    picture: str | Path,
    *,
    keys: Sequence[str] | None = None,
    window_size: int = 1,
) -> Path:
    """Draw one picture of several runs, with one pair of axes for each quantity.

    Args:
        work_dirs: Each is one curve, with the same colour on all axes; a work directory of several
            runs, where one resumed the other, counts as one. A run's log directory is that run.
        picture: File to write, ``.png`` or ``.svg``.
        keys: What to draw, such as ``["loss", "lr", "val/accuracy"]``; by default every loss, every
            number of a validation or test that any of them has, and the learning rates below the
            first loss. A name without a phase means
            training, and where that has none, validation.
        window_size: Average each value with those of so many records before it.

    Returns:
        The file written.

    Raises:
        ConfigError: If there is nothing to draw, a key names nothing, or the suffix is another.
        MMRunnerError: If matplotlib is not installed.
    """
    if Path(picture).suffix not in _SUFFIXES:
        raise ConfigError(f"{picture} was asked for; a picture ends in {' or '.join(_SUFFIXES)}.")
    if window_size < 1:
        raise ConfigError(f"window_size={window_size} was given; a positive number is needed.")
    curves = {_label(one, work_dirs): _curves_of(one) for one in work_dirs}
    known = dict.fromkeys(name for run in curves.values() for name in run)
    wanted = [_find(key, known) for key in keys] if keys else _usual(known)
    if not wanted:
        raise ConfigError(f"No loss and no metric is recorded; there is: {', '.join(known)}.")
    return _draw(curves, wanted, Path(picture), window_size)


def _curves_of(work_dir: str | Path) -> dict[str, _Curve]:
    """Return steps and values by ``phase/name``."""
    points: dict[str, list[tuple[int, float]]] = {}
    for record in read_scalars(work_dir):
        for name, value in record.items():
            if name not in _POSITION and (value is None or isinstance(value, (int, float))):
                # What was no number (NaN is null in the file) is a gap, which hides nothing.
                point = (record["step"], math.nan if value is None else value)
                points.setdefault(f"{record['mode']}/{name}", []).append(point)
    return {name: tuple(zip(*pairs, strict=True)) for name, pairs in points.items()}  # type: ignore[misc]


def _label(work_dir: str | Path, work_dirs: Sequence[str | Path]) -> str:
    """Return the shortest end of the path that tells it from the others."""
    parts = Path(work_dir).absolute().parts
    others = [Path(one).absolute().parts for one in work_dirs]
    for length in range(1, len(parts)):
        if sum(other[-length:] == parts[-length:] for other in others) == 1:
            return str(Path(*parts[-length:]))
    return str(work_dir)


def _usual(known: Iterable[str]) -> list[str]:
    """Return what is drawn unless somebody asks for more, the learning rates below the loss."""
    usual = list(filter(_is_usual, known))
    if usual:
        usual[_COLUMNS:_COLUMNS] = filter(is_rate, known)
    return usual


def _is_usual(name: str) -> bool:
    phase, _, quantity = name.partition("/")
    return "loss" in quantity if phase == "train" else quantity not in _ON_REQUEST


def _find(key: str, known: Iterable[str]) -> str:
    for name in (key, f"train/{key}", f"val/{key}", f"test/{key}"):
        if name in known:
            return name
    short = [name.partition("/")[2] for name in known]
    raise ConfigError(
        f"{key!r} was asked for; there is: {', '.join(known)}.{did_you_mean(key, short)}"
    )


def _draw(
    curves: dict[str, dict[str, _Curve]], wanted: Sequence[str], picture: Path, window_size: int
) -> Path:
    columns = 1 if wanted[1:] == list(filter(is_rate, wanted)) else _COLUMNS
    rows = math.ceil(len(wanted) / columns)
    figure = new_figure(4.8 * columns, 3.4 * rows)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for name, axes in zip(wanted, grid, strict=False):
        axes.set(title=name, xlabel="training step")
        axes.grid(alpha=0.3)
        for number, (label, run) in enumerate(curves.items()):
            if name in run:
                steps, values = run[name]
                axes.plot(
                    steps,
                    _smooth(values, window_size),
                    color=f"C{number % 10}",
                    marker="." if len(steps) < _FEW else None,
                    label=label,
                )
        if len(curves) > 1:
            axes.legend()
    for axes in grid[len(wanted) :]:  # what no quantity is left for
        axes.set_visible(False)
    return save_figure(figure, picture)


def _smooth(values: Sequence[float], window_size: int) -> list[float]:
    """Return the mean of each value and up to ``window_size - 1`` before it; a gap stays one."""
    means = []
    for end, value in enumerate(values, start=1):
        window = [one for one in values[max(0, end - window_size) : end] if not math.isnan(one)]
        means.append(math.nan if math.isnan(value) else sum(window) / len(window))
    return means
