"""Loss and metrics over training steps, as a picture."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner.errors import ConfigError

from ._figure import new_figure, save_figure

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["is_rate", "plot_curves", "read_scalars"]

_TIMES = ("time", "data_time")


def read_scalars(work_dir: str | Path) -> list[dict[str, Any]]:
    """Return the records of all runs in ``work_dir`` as one history.

    Where a resumed run repeats steps that an earlier one had done, the later run counts.

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


def plot_curves(work_dir: str | Path, picture: str | Path) -> Path:
    """Draw the training loss, the learning rate and every validation metric over training steps.

    Args:
        work_dir: Of one or more runs.
        picture: File to write; its ending says the format (``.png``, ``.svg``).

    Returns:
        The file written.

    Raises:
        ConfigError: If there is nothing to draw.
        MMRunnerError: If matplotlib is not installed.
    """
    history = read_scalars(work_dir)
    figure = new_figure(9, 4.8)
    panels = [["loss", "validation"], ["rate", "validation"]]
    axes = figure.subplot_mosaic(panels, gridspec_kw={"height_ratios": [2, 1]})
    _draw(axes["loss"], history, "train", lambda name: "loss" in name)
    axes["loss"].set(title="training loss", ylabel="loss")
    _draw(axes["rate"], history, "train", is_rate)
    axes["rate"].set(title="learning rate", xlabel="training step")
    _draw(axes["validation"], history, "val", lambda name: name not in _TIMES)
    axes["validation"].set(title="validation", xlabel="training step")
    return save_figure(figure, picture)


def is_rate(name: str) -> bool:
    """Tell whether a curve is that of a learning rate, of one optimizer or of several."""
    return re.fullmatch(r"(train/)?(.+\.)?lr", name) is not None


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


def _draw(axes: Any, history: list[dict[str, Any]], phase: str, wanted: Any) -> None:
    curves: dict[str, list[tuple[int, float]]] = {}
    for record in history:
        if record["mode"] != phase:
            continue
        for name, value in record.items():
            if name not in {"mode", "epoch", "step"} and wanted(name):
                # What was no number (NaN is null in the file) is a gap, which hides nothing.
                point = (record["step"], math.nan if value is None else value)
                curves.setdefault(name, []).append(point)
    for name, points in curves.items():
        steps, values = zip(*points, strict=True)
        axes.plot(steps, values, marker="." if len(steps) < 40 else None, label=name)
    axes.grid(alpha=0.3)
    if curves:
        axes.legend()
