"""Curves of runs, drawn from their ``scalars.jsonl`` (needs the extra ``mm-runner[plot]``)."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mm_runner.errors import ConfigError, WorkDirError, did_you_mean, import_extra

# Keys of a record that are no quantity, and quantities drawn only if they are asked for.
_POSITION = ("mode", "epoch", "step")
_ON_REQUEST = ("time", "data_time", "memory")


def plot_runs(
    work_dirs: Sequence[str | Path],
    picture: str | Path,
    *,
    keys: Sequence[str] | None = None,
) -> Path:
    """Draw one picture of several runs, with one pair of axes for each quantity.

    Args:
        work_dirs: Each is one curve, with the same colour on all axes; a work directory of several
            runs, where one resumed the other, counts as one. A run's log directory is that run.
        picture: File to write, ``.png`` or ``.svg``.
        keys: Quantities to draw, such as ``["loss", "lr", "val/accuracy"]``; by default losses
            first, then learning rates and every number of a validation or test. A name without a
            phase means training, and where that has none, validation.

    Returns:
        The file written.

    Raises:
        ConfigError: If there is nothing to draw, a key names nothing, the suffix is another, or
            matplotlib is not installed.
        WorkDirError: If nothing can be written there.
    """
    curves = [_curves_of(one) for one in work_dirs]
    known = list(dict.fromkeys(name for run in curves for name in run))
    if keys:
        wanted = [_find(key, known) for key in keys]
    else:
        wanted = sorted(filter(_is_usual, known), key=lambda name: "loss" not in name)
    if not wanted:
        raise ConfigError(f"No loss and no metric is recorded; there is: {', '.join(known)}.")
    parents = os.path.commonpath([Path(one).absolute() for one in work_dirs])
    figure = _new_figure(picture, 3.0 * len(wanted))
    grid = figure.subplots(len(wanted), 1, squeeze=False).flat
    for name, axes in zip(wanted, grid, strict=True):
        axes.set(title=name, xlabel="training step")
        axes.grid(alpha=0.3)
        for number, (work_dir, run) in enumerate(zip(work_dirs, curves, strict=True)):
            if name in run:
                label = os.path.relpath(work_dir, parents)
                steps, values = zip(*run[name], strict=True)
                axes.plot(steps, values, color=f"C{number % 10}", marker=".", label=label)
        if len(curves) > 1:
            axes.legend()
    return _save(figure, picture)


def plot_rates(points: Sequence[Any], suggestion: float | None, picture: str | Path) -> Path:
    """Draw the losses over the learning rates of a range test; errors as :func:`plot_runs`."""
    figure = _new_figure(picture, 3.6)
    axes = figure.subplots()
    axes.set(xscale="log", xlabel="learning rate", ylabel="training loss")
    rates, smoothed = [one.lr for one in points], [one.smoothed for one in points]
    axes.plot(rates, [one.loss for one in points], alpha=0.4, label="loss")
    axes.plot(rates, smoothed, label="smoothed")
    if points:  # a loss that diverges would leave no room for the rest
        room = 0.2 * (max(smoothed) - min(smoothed)) or 1.0
        axes.set_ylim(min(one.loss for one in points) - room, max(smoothed) + room)
    if suggestion is not None:
        label = f"falls fastest: {suggestion:.2g}"
        axes.axvline(suggestion, color="black", linestyle=":", label=label)
    axes.legend()
    return _save(figure, picture)


def _new_figure(picture: str | Path, height_in: float) -> Any:
    if Path(picture).suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"{picture} was asked for; a picture ends in .png or .svg.")
    # A Figure of its own, not pyplot: that would choose a window system for the whole process.
    matplotlib = import_extra("matplotlib.figure", "plot", "Drawing curves")
    return matplotlib.Figure(figsize=(6.4, height_in), layout="constrained")


def _save(figure: Any, picture: str | Path) -> Path:
    path = Path(picture)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise WorkDirError(
            f"{path} was asked for; it cannot be written: {error}. Give another file."
        ) from error
    return path


def _curves_of(work_dir: str | Path) -> dict[str, list[tuple[int, float]]]:
    """Return steps and values by ``phase/name``; values that were not finite are gaps."""
    points: dict[str, list[tuple[int, float]]] = {}
    for record in read_scalars(work_dir):
        for name, value in record.items():
            if name not in _POSITION and (value is None or isinstance(value, (int, float))):
                point = (record["step"], math.nan if value is None else value)
                points.setdefault(f"{record['mode']}/{name}", []).append(point)
    return points


def read_scalars(work_dir: str | Path) -> list[dict[str, Any]]:
    """Return the records of all runs in ``work_dir`` as one history.

    Where a resumed run repeats steps of an earlier one, the later run counts.

    Args:
        work_dir: With the runs' log directories in it; or one of these.

    Raises:
        ConfigError: If there is no record.
    """
    history: list[dict[str, Any]] = []
    own = Path(work_dir, "scalars.jsonl")
    found = [own] if own.is_file() else Path(work_dir).glob("*/scalars.jsonl")
    for path in sorted(found, key=_start_of_run):
        records = list(_records(path))
        trained = [record["step"] for record in records if record["mode"] == "train"]
        if trained:
            history = [record for record in history if record["step"] < trained[0]]
        history += records
    if not history:
        raise ConfigError(
            f"{work_dir} has no <run>/scalars.jsonl with records; give the work_dir of a Runner "
            "that has logged at least one interval."
        )
    return history


def _start_of_run(path: Path) -> list[int]:
    # date_time, or date_time_number for runs started within one second
    return [int(part) for part in path.parent.name.split("_") if part.isdecimal()]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # the last line of a run that was killed while writing it
            continue
        if isinstance(record, dict) and {"mode", "step"} <= record.keys():  # else not a Runner's
            yield record


def _is_usual(name: str) -> bool:
    """Return whether to draw a quantity by default: losses, rates, metrics."""
    phase, _, quantity = name.partition("/")
    if phase == "train":
        return "loss" in quantity or quantity.rpartition(".")[2] == "lr"
    return quantity not in _ON_REQUEST


def _find(key: str, known: Sequence[str]) -> str:
    for name in (key, f"train/{key}", f"val/{key}", f"test/{key}"):
        if name in known:
            return name
    short = [name.partition("/")[2] for name in known]
    raise ConfigError(
        f"{key!r} was asked for; there is: {', '.join(known)}.{did_you_mean(key, short)}"
    )
