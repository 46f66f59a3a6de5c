"""Scalars, images and the configuration for MLflow."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mm_runner.errors import import_extra

from ._writers import named_scalars, newest_run_id

# MLflow's client would retry for minutes; what the environment says already is left as it is.
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_PAUSE_S, _MAX_UNSENT = 60, 100_000
# What a server takes at once, and which names and values.
_MAX_METRICS, _MAX_PARAMS, _LONGEST_VALUE = 1000, 100, 500
_NOT_IN_NAMES = re.compile(r"[^\w\-. :/]")
_KEPT = "mlflow_run_id"


class MLflowWriter:
    """Logs scalars, images and the configuration to MLflow.

    A training that resumes in its work directory continues its run, in which the steps after the
    checkpoint then stand twice. The run ends as ``FINISHED``, ``FAILED`` or ``KILLED`` (stopped by
    a signal or Ctrl-C, to be resumed); that of a process that was killed stays ``RUNNING``. A run
    that the program has started itself (``mlflow.start_run``) is written to, and not ended.

    A server that does not answer is tried again after a minute at the earliest, for at most 20
    seconds unless ``MLFLOW_HTTP_REQUEST_MAX_RETRIES`` and ``MLFLOW_HTTP_REQUEST_TIMEOUT`` are set;
    scalars wait until then.

    Args:
        log_dir: Existing directory of the run's log files.
        save_dir: Where a SQLite store is kept on this machine, in place of ``tracking_uri``; needs
            the whole of ``mlflow``.
        exp_name: The experiment; created if absent. Defaults to ``MLFLOW_EXPERIMENT_NAME``, or the
            name of the work directory.
        run_name: Defaults to the name of ``log_dir``.
        tags: Of a new run.
        tracking_uri: Address of a server or store. Defaults to MLflow's own: that of
            ``mlflow.set_tracking_uri``, or of ``MLFLOW_TRACKING_URI``.
        artifact_location: Where artifacts of a new experiment go.

    Raises:
        ConfigError: If mlflow, the extra ``mlflow``, is not installed, or an argument is wrong.
    """

    def __init__(
        self,
        log_dir: Path,
        save_dir: str | Path | None = None,
        exp_name: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_uri: str | None = None,
        artifact_location: str | None = None,
    ) -> None:
        self._mlflow = import_extra("mlflow", "mlflow", "MLflowWriter")
        if save_dir is not None and tracking_uri is None:
            directory = Path(save_dir).absolute()
            directory.mkdir(parents=True, exist_ok=True)
            tracking_uri = f"sqlite:///{directory}/mlflow.db"
            artifact_location = artifact_location or (directory / "artifacts").as_uri()
        self._uri, self._artifacts = tracking_uri, artifact_location
        self._exp_name = exp_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or log_dir.parent.name
        self._run_name = run_name or log_dir.name
        self._tags, self._log_dir = dict(tags or {}), log_dir
        self._client: Any = None
        self._run_id = self._status = ""
        self._is_own, self._resumes = True, False
        self._trains = False  # a test in the work directory is not what a training continues
        self._unsent: list[Any] = []
        self._next_attempt_s = 0.0

    def write(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of ``record`` at its step, or at its epoch."""
        place = record["epoch" if record.get("axis") == "epoch" else "step"]
        now_ms = int(time.time() * 1000)
        self._trains |= record.get("mode") == "train"
        self._unsent += [
            self._mlflow.entities.Metric(_name(name), float(value), now_ms, place)
            for name, value in named_scalars(record).items()
        ]
        del self._unsent[:-_MAX_UNSENT]
        if time.monotonic() >= self._next_attempt_s:
            self._send()

    def add_image(self, name: str, image: Any, step: int) -> None:
        """Log an image of shape ``(height, width)`` or ``(height, width, channels)``."""
        pixels = image.numpy() if hasattr(image, "numpy") else image
        with self._connected() as client:
            client.log_image(self._run_id, pixels, key=_name(name), step=step)

    def add_config(self, config: Mapping[str, Any]) -> None:
        """Log keys of a configuration as parameters; MLflow changes no value that it has."""
        with self._connected() as client:
            known = client.get_run(self._run_id).data.params
            new = {name: one for name, one in _flat(config).items() if name not in known}
            params = [self._mlflow.entities.Param(*item) for item in new.items()]
            for begin in range(0, len(params), _MAX_PARAMS):
                client.log_batch(self._run_id, params=params[begin : begin + _MAX_PARAMS])

    def resume(self) -> None:
        """Continue the newest run of the work directory, if there is one."""
        self._resumes = True

    def end(self, status: str) -> None:
        """Send the rest, and end the run, as ``"finished"``, ``"failed"`` or ``"killed"``."""
        self._status = status.upper()
        self._send()
        if self._is_own:
            with self._connected() as client:
                client.set_terminated(self._run_id, self._status)

    def close(self) -> None:
        """Send the rest, and end the run."""
        if self._unsent or (self._run_id and not self._status):
            self.end(self._status or "finished")

    def _send(self) -> None:
        with self._connected() as client:
            kept = self._log_dir / _KEPT
            if self._trains and not kept.exists():
                kept.write_text(self._run_id, encoding="utf-8")
            while self._unsent:
                try:
                    client.log_batch(self._run_id, metrics=self._unsent[:_MAX_METRICS])
                except self._mlflow.exceptions.MlflowException as error:
                    if error.get_http_status_code() == 400:  # would be refused again
                        del self._unsent[:_MAX_METRICS]
                    raise
                del self._unsent[:_MAX_METRICS]

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """Give the client, with a run; begun at the first use, as that may wait for a network."""
        added = {name: value for name, value in _PATIENCE.items() if name not in os.environ}
        os.environ.update(added)  # the client reads it at each request
        try:
            if not self._run_id:
                self._start()
            yield self._client
            self._next_attempt_s = 0.0
        except Exception:
            self._next_attempt_s = time.monotonic() + _PAUSE_S
            raise
        finally:
            for name in added:
                os.environ.pop(name, None)

    def _start(self) -> None:
        client = self._client = self._mlflow.MlflowClient(self._uri)
        active = self._mlflow.active_run()
        kept = newest_run_id(self._log_dir.parent, _KEPT) if self._resumes else None
        if active is not None:
            self._run_id, self._is_own = active.info.run_id, False
        elif kept is not None and self._continue(kept):
            self._run_id = kept
        else:
            found = client.get_experiment_by_name(self._exp_name)
            experiment = found.experiment_id if found is not None else None
            experiment = experiment or client.create_experiment(self._exp_name, self._artifacts)
            run = client.create_run(experiment, tags=self._tags, run_name=self._run_name)
            self._run_id = run.info.run_id
        config = self._log_dir / "config.yaml"
        if config.is_file():
            import yaml  # noqa: PLC0415 - importing the Runner stays cheap

            client.log_artifact(self._run_id, str(config), self._log_dir.name)
            self.add_config(yaml.safe_load(config.read_text(encoding="utf-8")))

    def _continue(self, run_id: str) -> bool:
        try:
            self._client.update_run(run_id, status="RUNNING")
        except self._mlflow.exceptions.MlflowException as error:
            if error.get_http_status_code() not in (400, 404):  # deleted, of another store
                raise
            return False
        return True


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return values by the path of their key: ``{"optim_wrapper.optimizer.lr": "0.1"}``."""
    found: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found.update(_flat(value, f"{prefix}{key}."))
        else:
            found[_name(f"{prefix}{key}")] = str(value)[:_LONGEST_VALUE]
    return found


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)
