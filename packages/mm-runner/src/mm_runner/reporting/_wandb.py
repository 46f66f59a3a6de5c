"""Scalars for Weights & Biases."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from mm_runner.errors import import_extra

from ._writers import named_scalars


class WandbWriter:
    """Sends scalars to Weights & Biases, or keeps them for ``wandb sync``.

    ``init_kwargs=dict(mode="offline")`` or ``WANDB_MODE=offline`` keeps the run on this machine.

    Each writer has its own run, and ends the run of an earlier writer. A run that the program has
    started itself is written to, and not ended.

    Args:
        log_dir: Existing directory of the run's log files, where wandb keeps its own.
        save_dir: Where it keeps them instead; created if absent.
        init_kwargs: Arguments of ``wandb.init``: ``project``, ``entity``, ``name``, ``mode``, ...
        define_metric_cfg: Summaries by name of a metric, ``{"val/accuracy": "max"}``, or a list of
            dicts of arguments of ``define_metric``.

    Raises:
        ConfigError: If wandb, the extra ``wandb``, is not installed, or an argument is wrong.
    """

    _newest: ClassVar[weakref.ref[WandbWriter] | None] = None

    def __init__(
        self,
        log_dir: Path,
        save_dir: str | Path | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
        define_metric_cfg: Mapping[str, str] | list[Mapping[str, Any]] | None = None,
    ) -> None:
        self._wandb = import_extra("wandb", "wandb", "WandbWriter")
        directory = Path(log_dir if save_dir is None else save_dir)
        directory.mkdir(parents=True, exist_ok=True)
        self._arguments = {
            "dir": str(directory),
            "name": f"{log_dir.parent.name}/{log_dir.name}",
            **(init_kwargs or {}),
        }
        cfg = define_metric_cfg or []
        if isinstance(cfg, Mapping):
            cfg = [{"name": name, "summary": summary} for name, summary in cfg.items()]
        self._metrics = [{"step_metric": "step", **metric} for metric in cfg]
        self._config_file = log_dir / "config.yaml"
        self._run: Any = None
        self._is_own = True

    def write(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of ``record``, with ``epoch`` and ``step``, by which curves are drawn."""
        position = {name: record[name] for name in ("epoch", "step") if name in record}
        self._started().log({**named_scalars(record), **position})

    def add_image(self, name: str, image: Any, step: int) -> None:
        """Log an image of shape ``(height, width)`` or ``(height, width, channels)``."""
        pixels = image.numpy() if hasattr(image, "numpy") else image
        self._started().log({name: self._wandb.Image(pixels), "step": step})

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Change keys of the configuration that the run shows."""
        self._started().config.update(dict(config), allow_val_change=True)

    def close(self) -> None:
        """Upload the rest, and end the run, unless the program has started it."""
        run, self._run = self._run, None
        if run is None or not self._is_own:
            return
        atexit.unregister(self.close)
        run.finish()

    def _started(self) -> Any:
        """Return the run; begun at the first record, as that may wait for a network."""
        if self._run is not None:
            return self._run
        arguments = dict(self._arguments)
        if "config" not in arguments and self._config_file.is_file():
            import yaml  # noqa: PLC0415 - importing the Runner stays cheap

            arguments["config"] = yaml.safe_load(self._config_file.read_text(encoding="utf-8"))
        # wandb would otherwise continue the run of an earlier Runner of this process.
        before = None if WandbWriter._newest is None else WandbWriter._newest()
        if before is not None:
            before.close()
        active = getattr(self._wandb, "run", None)
        self._run = run = self._wandb.init(**arguments)
        self._is_own = run is not active
        WandbWriter._newest = weakref.ref(self)
        # Before wandb's own end of the process, behind which no run can be ended any more.
        atexit.register(self.close)
        # By its own step, which may repeat or fall: wandb drops what comes at an earlier one.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for metric in self._metrics:
            run.define_metric(**metric)
        return run
