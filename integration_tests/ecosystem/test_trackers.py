"""Trackers hold the numbers of ``scalars.jsonl``: MLflow's server, W&B offline and TensorBoard."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from mm_runner.reporting import GuardedWriter, MLflowWriter

mlflow = pytest.importorskip("mlflow")

SCRIPT = Path(__file__).with_name("tracked_run.py")
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "WANDB_MODE": "offline",
}
STEPS = 20
pytestmark = pytest.mark.filterwarnings("ignore")  # of the trackers' own dependencies


class Server:
    """A real MLflow server on loopback, with a SQLite store and its own artifacts."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process = None

    def start(self):
        options = {
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--workers": "1",
            "--backend-store-uri": f"sqlite:///{self.folder}/mlflow.db",
            "--artifacts-destination": str(self.folder / "artifacts"),
        }
        command = [sys.executable, "-m", "mlflow", "server"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(one for pair in options.items() for one in pair)],
                env=ENVIRONMENT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        for _ in range(600):
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                    return
            except OSError:
                assert self._process.poll() is None, (self.folder / "server.log").read_text()
                time.sleep(0.2)
        pytest.fail("the server does not answer")

    def stop(self):
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # it and its workers
            self._process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


def train(folder, writers, *how, status=0):
    """Run the script in ``folder``, and return its records of scalars by log directory."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(writers), *how],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def written(folder, *, by_epoch):
    """Return the numbers of ``scalars.jsonl`` as ``{name: [(step, value), ...]}``."""
    found = defaultdict(list)
    for path in sorted(folder.glob("run/*/scalars.jsonl")):
        for record in map(json.loads, path.read_text().splitlines()):
            mode = record.pop("mode")
            epoch, step = record.pop("epoch"), record.pop("step")
            for name, value in record.items():
                place = epoch if by_epoch and mode == "val" else step
                found[f"{mode}/{name}"].append((place, value))
    assert {"train/loss", "train/lr", "val/accuracy"} <= set(found)
    return dict(found)


def histories(client, run):
    return {
        name: sorted((one.step, one.value) for one in client.get_metric_history(run, name))
        for name in client.get_run(run).data.metrics
    }


def runs_of(client, experiment):
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id])


def wandb_rows(log_dir):
    """Read what W&B has kept: blocks of 32 KiB with records of protobuf, as LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    (path,) = log_dir.rglob("run-*.wandb")
    content, position, whole = path.read_bytes(), 7, b""
    while position + 7 < len(content):
        if position % 2**15 > 2**15 - 7:  # no room for another header
            position += -position % 2**15
        _, length, kind = struct.unpack_from("<IHB", content, position)
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole one, or the last part
            record, whole = Record.FromString(whole), b""
            items = record.history.item
            yield {one.key or one.nested_key[0]: json.loads(one.value_json) for one in items}


def test_all_trackers_hold_what_the_run_wrote(server, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    to_mlflow = {"type": "MLflowVisBackend", "tracking_uri": server.uri, "exp_name": "all"}
    printed = train(
        tmp_path, [{**to_mlflow, "tags": {"a": "b"}}, "WandbWriter", "TensorBoardWriter"]
    )
    assert "failed:" not in printed
    expected = written(tmp_path, by_epoch=True)
    (log_dir,) = (path.parent for path in tmp_path.glob("run/*/scalars.jsonl"))

    client = mlflow.MlflowClient(server.uri)
    (run,) = runs_of(client, "all")
    assert histories(client, run.info.run_id) == expected
    assert (run.info.status, run.info.run_name) == ("FINISHED", log_dir.name)
    assert run.data.tags["a"] == "b"
    assert run.data.params["optim_wrapper.optimizer.lr"] == "0.125"
    config = f"{log_dir.name}/config.yaml"
    path = client.download_artifacts(run.info.run_id, config, str(tmp_path))
    assert Path(path).read_bytes() == (log_dir / "config.yaml").read_bytes()
    images = [one.path for one in client.list_artifacts(run.info.run_id, "images")]
    assert any(path.startswith("images/red") and path.endswith(".png") for path in images)

    events = EventAccumulator(str(log_dir), size_guidance={"scalars": 0}).Reload()
    for name, points in expected.items():
        found = [(one.step, one.value) for one in events.Scalars(name)]
        assert found == [(step, pytest.approx(value)) for step, value in points], name

    found = defaultdict(list)
    for row in wandb_rows(log_dir):
        for name in expected.keys() & row.keys():
            found[name].append((row["step"], row[name]))
    assert found == written(tmp_path, by_epoch=False)


@pytest.mark.parametrize(("how", "code", "status"), [("fail", 1, "FAILED"), ("stop", 75, "KILLED")])
def test_a_resumed_training_continues_its_run(tmp_path, how, code, status):
    writers = [{"type": "MLflowWriter", "save_dir": str(tmp_path), "exp_name": how}]
    train(tmp_path, writers, how, status=code)
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (run,) = runs_of(client, how)
    assert run.info.status == status
    train(tmp_path, writers, "resume")
    (resumed,) = runs_of(client, how)
    assert (resumed.info.run_id, resumed.info.status) == (run.info.run_id, "FINISHED")
    found = histories(client, run.info.run_id)
    assert found == {
        name: sorted(points) for name, points in written(tmp_path, by_epoch=True).items()
    }
    assert {epoch for epoch, _ in found["val/accuracy"]} == {1, 2, 3, 4}
    assert len(client.list_artifacts(run.info.run_id)) == 3  # two configurations, and images


def test_training_goes_on_without_the_server_and_scalars_arrive_later(tmp_path):
    server, warnings = Server(tmp_path), []
    (tmp_path / "log").mkdir()
    writer = MLflowWriter(tmp_path / "log", tracking_uri=server.uri, exp_name="late")
    guarded = GuardedWriter(writer, warnings.append)
    began, environment = time.monotonic(), dict(os.environ)
    for step in range(2000):
        guarded.call("write", {"mode": "train", "epoch": 1, "step": step, "loss": float(step)})
    assert time.monotonic() - began < 30, "MLflow's own patience is minutes, for each"
    assert len(warnings) == 1
    assert warnings[0].startswith("MLflowWriter failed: MlflowException: ")
    assert dict(os.environ) == environment
    server.start()
    try:
        guarded.call("end", "finished")
        client = mlflow.MlflowClient(server.uri)
        (run,) = runs_of(client, "late")
        assert run.info.status == "FINISHED"
        steps = [one.step for one in client.get_metric_history(run.info.run_id, "train/loss")]
        assert sorted(steps) == list(range(2000))
    finally:
        server.stop()


def test_a_run_of_the_program_s_own_is_written_to_and_not_ended(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_tracking_uri(None)
    (tmp_path / "log").mkdir()
    mlflow.create_experiment("own", (tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("own")
    with mlflow.start_run() as active:
        writer = MLflowWriter(tmp_path / "log")
        writer.write({"mode": "val", "epoch": 1, "step": 6, "accuracy@5 %": 0.5})
        writer.end("finished")
        writer.close()
        run = mlflow.MlflowClient().get_run(active.info.run_id)
        assert run.data.metrics == {"val/accuracy_5 _": 0.5}
        assert run.info.status == "RUNNING"
