"""Writers of a run's scalars, and their configs."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from mm_runner.errors import ConfigError, import_extra
from mm_runner.registry import need_mapping

_POSITION = ("mode", "epoch", "step", "axis")
_MMENGINES_NAMES = {
    "LocalVisBackend": "JsonLinesWriter",
    "MLflowVisBackend": "MLflowWriter",
    "TensorboardVisBackend": "TensorBoardWriter",
    "WandbVisBackend": "WandbWriter",
}


class LogWriter(Protocol):
    """A writer of scalars; the Runner builds one from ``dict(type=..., **arguments)``.

    It is given ``log_dir``, the existing directory of the run's log files (a ``Path``), where
    ``config.yaml`` is the resolved configuration, besides the arguments. Training waits for its
    calls; an exception is logged once and ends nothing.
    These are called where there are any: ``resume()`` before the first record of a training that
    resumes; ``end(status)`` after a training that has ``"finished"``, ``"failed"`` or was
    ``"killed"``, to be resumed; ``close()`` with the Runner; and for ``runner.visualizer``
    ``add_image(name, image, step)`` and ``add_config(config)``.
    """

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record: ``mode`` (``"train"``, ``"val"``, ``"test"``), ``epoch``, ``step``, ...

        One that is drawn by epoch has ``axis="epoch"``; one of no phase has the mode ``"other"``.
        """


class JsonLinesWriter:
    """Appends one JSON object per log line to ``scalars.jsonl``.

    Args:
        log_dir: Existing directory of the run's log files.
        save_dir: Where to write instead; created if absent.
    """

    def __init__(self, log_dir: Path, save_dir: str | Path | None = None) -> None:
        self._path = Path(save_dir or log_dir) / "scalars.jsonl"
        self._file: TextIO | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``; a value that JSON has no number for (nan, inf) becomes ``null``."""
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
            if key != "axis"  # both are here
        }
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # What a killed run wrote last is on the disk.
            self._file = self._path.open("a", 1, encoding="utf-8")
        self._file.write(f"{json.dumps(finite)}\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class GuardedWriter:
    """Calls a writer, whose failures are logged once and end no training.

    Args:
        writer: With ``write(record)``, and perhaps other methods.
        warn: Logs a message.
    """

    def __init__(self, writer: Any, warn: Callable[[str], None]) -> None:
        self._writer, self._warn = writer, warn
        self._has_warned = False

    def call(self, method: str, *arguments: Any) -> None:
        """Call ``method``, if the writer has it."""
        try:
            if callable(getattr(self._writer, method, None)):
                getattr(self._writer, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - a full disk, a network that is gone
            if not self._has_warned:
                self._warn(
                    f"{type(self._writer).__name__} failed: {type(error).__name__}: {error}. "
                    "Training continues, and so do attempts to write."
                )
            self._has_warned = True


class TensorBoardWriter:
    """Writes scalars as TensorBoard's events: ``train/loss`` by training step, ``val/accuracy``.

    Those of validations are by epoch or by step, as ``LoggerHook.log_metric_by_epoch`` says.
    ``tensorboard --logdir work_dir`` shows the runs of a work directory beside one another, each
    with its configuration as a text.

    Args:
        log_dir: Existing directory of the run's log files, where the events go.
        save_dir: Where they go instead; created if absent.

    Raises:
        ConfigError: If tensorboard, the extra ``tensorboard``, is not installed.
    """

    def __init__(self, log_dir: Path, save_dir: str | Path | None = None) -> None:
        with warnings.catch_warnings():  # of its own dependencies, about each other
            warnings.simplefilter("ignore")
            board = import_extra("torch.utils.tensorboard", "tensorboard", "TensorBoardWriter")
        self._events = board.SummaryWriter(str(log_dir if save_dir is None else save_dir))
        config = log_dir / "config.yaml"
        if config.is_file():
            self._add_config(config.read_text(encoding="utf-8"))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add the numbers of ``record`` at its step, or at its epoch."""
        place = record["epoch" if record.get("axis") == "epoch" else "step"]
        for name, value in named_scalars(record).items():
            self._events.add_scalar(name, value, place)
        self._events.flush()  # what a killed run wrote last is on the disk

    def add_image(self, name: str, image: Any, step: int) -> None:
        """Add an image of shape ``(height, width)`` or ``(height, width, channels)``."""
        self._events.add_image(name, image, step, dataformats="HWC"[: image.ndim])
        self._events.flush()

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Add keys of a configuration, as a text."""
        import yaml  # noqa: PLC0415 - importing the Runner stays cheap

        self._add_config(yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
        self._events.flush()

    def close(self) -> None:
        """End the file."""
        self._events.close()

    def _add_config(self, text: str) -> None:
        indented = text.replace("\n", "\n    ")
        self._events.add_text("config", f"    {indented}", 0)


def newest_run_id(work_dir: Path, name: str) -> str | None:
    """Return a tracker's id of the newest run in ``work_dir``: its log directory keeps it."""
    kept = max(work_dir.glob(f"*/{name}"), key=lambda path: path.stat().st_mtime, default=None)
    found = kept.read_text(encoding="utf-8").strip() if kept is not None else ""
    return found if re.fullmatch(r"[\w-]{1,64}", found) else None


def named_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of ``record`` with its mode before their names, unless it is ``"other"``.

    Example:
        >>> named_scalars({"mode": "val", "epoch": 1, "step": 6, "accuracy": 0.5})
        {'val/accuracy': 0.5}
    """
    mode = record.get("mode", "train")
    prefix = "" if mode == "other" else f"{mode}/"
    return {
        f"{prefix}{name}": value
        for name, value in record.items()
        if name not in _POSITION and isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def writer_configs(visualizer: Any, log_writers: Any) -> dict[str, Any]:
    """Return the writers besides ``scalars.jsonl``: a config or a writer, by its path.

    Args:
        visualizer: ``dict(vis_backends=[dict(type='TensorboardVisBackend'), ...])``, of which other
            keys are ignored: nothing is drawn here; or ``None``.
        log_writers: A name, a config, a writer, or a list of these; or ``None``.

    Raises:
        ConfigError: If one of them is something else.

    Example:
        >>> writer_configs(None, ["TensorBoardWriter"])
        {'log_writers[0]': {'type': 'TensorBoardWriter'}}
    """
    visualizer = need_mapping({} if visualizer is None else visualizer, "visualizer")
    kind = visualizer.get("type")
    if isinstance(kind, str) and not kind.endswith("Visualizer"):
        raise ConfigError(
            f"visualizer.type: {kind!r} was given; nothing is drawn here, and only names that end "
            "in 'Visualizer' are ignored. Leave it out."
        )
    found: dict[str, Any] = {}
    backends = visualizer.get("vis_backends")
    for where, given in (("visualizer.vis_backends", backends), ("log_writers", log_writers)):
        entries = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        for index, entry in enumerate(entries):
            is_kind, place = isinstance(entry, (str, type)), f"{where}[{index}]"
            cfg = {"type": entry} if is_kind else entry
            if isinstance(cfg, Mapping):
                kind = cfg.get("type")
                name = str(getattr(kind, "__name__", kind)).removeprefix("mmengine.")
                cfg = {**cfg, "type": _MMENGINES_NAMES.get(name, kind)}
            elif not callable(getattr(cfg, "write", None)):
                raise ConfigError(
                    f"{place}: the name of a writer, a dict with 'type', or an object with "
                    f"write(record) is needed, got {cfg!r}."
                )
            if cfg != {"type": "JsonLinesWriter"} and cfg not in found.values():
                found[place] = cfg
    return found
