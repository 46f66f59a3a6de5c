"""Predictions in a file, and metrics of predictions that are there already."""

import enum
import json
import pickle
import sys
import warnings
from pathlib import Path

import pytest
import torch
from toy import Blobs, Classifier, loader_cfg, runner_arguments
from typing_extensions import override

from mm_dist import is_main_process
from mm_runner import ConfigError, Runner
from mm_runner.cli import main
from mm_runner.errors import PredictionsError
from mm_runner.evaluator import (
    Accuracy,
    BaseMetric,
    DumpResults,
    Evaluator,
    load_predictions,
)

SCORES = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
LABELS = torch.tensor([0, 1, 1])


class Samples(BaseMetric):
    """Keeps what it is given, as MMEngine's metrics take it: a list with an entry per sample."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.calls = []
        self.seen = None

    @override
    def process(self, data_batch, data_samples):
        self.calls.append((data_batch, data_samples))
        self.results.extend(data_samples)

    def compute_metrics(self, results):
        self.seen = results
        return {"num": len(results)}


class DataSample:
    def __init__(self, label):
        self.label = label

    def to_dict(self):
        return {"label": self.label}


class Level(enum.IntEnum):
    HIGH = 3


def dumped(path, *batches, size=None):
    """Write what a model returned for batches, and read it with torch alone and with ours."""
    metric = DumpResults(path)
    for batch in batches:
        metric.process(None, batch)
    assert metric.evaluate(sum(map(_size, batches)) if size is None else size) == {}
    assert metric.results == []
    if hasattr(torch, "compile"):  # the safe loader of torch 1.13 knows no floats
        assert torch.load(path, weights_only=True)["num_samples"] == _size(load_predictions(path))
    return load_predictions(path)


def _size(batch):
    first = batch[0] if isinstance(batch, tuple) else batch
    return len(next(iter(first.values())) if isinstance(first, dict) else first)


def test_tensors_of_a_batch_are_put_together_over_batches(tmp_path):
    path = tmp_path / "new" / "out.pkl"
    predictions = dumped(path, (SCORES[:2], ["a", "b"]), (SCORES[2:], ["c"]))
    scores, names = predictions
    assert torch.equal(scores, SCORES)
    assert names == ["a", "b", "c"]


def test_lists_of_samples_stay_lists_and_are_made_plain(tmp_path):
    numpy = pytest.importorskip("numpy")
    batch = [
        {"boxes": torch.ones(2, 4, requires_grad=True), "level": Level.HIGH},
        DataSample(numpy.float32(0.5)),
        numpy.arange(3),
    ]
    first, second, third = dumped(tmp_path / "out.pth", batch)
    assert type(first["level"]) is int
    assert not first["boxes"].requires_grad
    assert second == {"label": 0.5}
    assert third.tolist() == [0, 1, 2]


def test_rows_of_different_shapes_become_a_list(tmp_path):
    batches = [{"logits": torch.ones(2, 5)}, {"logits": torch.ones(1, 7)}]
    predictions = dumped(tmp_path / "out.pkl", *batches, size=3)
    assert [tuple(row.shape) for row in predictions["logits"]] == [(5,), (5,), (7,)]


def test_what_fills_up_and_the_rest_of_a_batch_are_not_in_the_file(tmp_path):
    views = list(torch.arange(1000.0).reshape(100, 10))[:2]
    assert len(dumped(tmp_path / "out.pkl", views)) == 2
    assert (tmp_path / "out.pkl").stat().st_size < 3_000  # not the 4,000 bytes of the batch
    with pytest.warns(UserWarning, match="3 results of a dataset of 2"):
        assert _size(dumped(tmp_path / "out.pkl", (SCORES, LABELS), size=2)) == 2


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": {"b": object()}}, r"^predictions\.a\.b: builtins\.object cannot be kept; .*to_dict"),
        ([0.5, {1, 2}], r"^predictions\[1\]: builtins\.set cannot be kept"),
        ((SCORES, 0.5), r"^predictions: 0\.5 has no entry for each sample"),
        ((SCORES, LABELS[:2]), r"predictions hold 3 and 2 samples"),
        ((None, None), r"The predictions hold no samples: \(None, None\)"),
    ],
    ids=["object", "set", "number", "lengths", "nothing"],
)
def test_predictions_that_cannot_be_kept_are_refused_by_name(tmp_path, batch, message):
    with pytest.raises(ConfigError, match=message):
        DumpResults(tmp_path / "out.pkl").process(None, batch)


def test_batches_of_other_parts_and_other_suffixes_are_refused(tmp_path):
    metric = DumpResults(tmp_path / "out.pkl")
    metric.process(None, {"a": SCORES})
    with pytest.raises(ConfigError, match=r"were \{'a': 'rows'\}, and now are \{'b': 'rows'\}"):
        metric.process(None, {"b": SCORES})
    with pytest.raises(ConfigError, match=r"out_file_path: a path that ends in \.pkl, .*got "):
        DumpResults("out.json")


class _Harmful:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


def test_reading_a_file_runs_nothing_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mmengine.pkl").write_bytes(pickle.dumps([_Harmful()]))
    torch.save({"results": [_Harmful()]}, tmp_path / "torch.pkl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 1.13 and 2.0, of their own loaders
        for name in ("mmengine.pkl", "torch.pkl"):
            with pytest.raises(PredictionsError, match=rf"{name} cannot be read as predictions"):
                load_predictions(tmp_path / name)
    assert not (tmp_path / "executed").exists()
    torch.save({"state_dict": {}}, tmp_path / "other.pth")
    with pytest.raises(PredictionsError, match=r"holds 'state_dict'; a file of DumpResults"):
        load_predictions(tmp_path / "other.pth")
    with pytest.raises(PredictionsError, match="no such file"):
        load_predictions(tmp_path / "absent.pkl")


@pytest.mark.parametrize("chunk_size", [1, 2, 5])
def test_dumped_predictions_give_the_metrics_of_the_run(make_runner, tmp_path, chunk_size):
    path = tmp_path / "out.pkl"
    metrics = [{"type": "Accuracy"}, {"type": "DumpResults", "out_file_path": str(path)}]
    measured = make_runner(val_evaluator=metrics).val()
    predictions = load_predictions(path)
    assert len(predictions[1]) == 9
    evaluator = Evaluator({"type": "Accuracy"})
    assert evaluator.offline_evaluate(predictions, chunk_size=chunk_size) == measured
    assert evaluator.offline_evaluate(predictions, Blobs(9), chunk_size) == measured


def test_a_list_of_samples_is_evaluated_in_chunks_with_its_data():
    metric = Samples()
    samples = [{"id": index} for index in range(5)]
    data = [{"x": index * 10} for index in range(5)]
    assert Evaluator(metric).offline_evaluate(samples, data, chunk_size=2) == {"num": 5}
    assert metric.seen == samples
    assert metric.calls[1] == ({"x": [20, 30]}, samples[2:4])
    assert metric.calls[2] == ({"x": [40]}, samples[4:])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), r"data_samples: 0 predictions were given"),
        (([1, 2], [1]), r"2 predictions were given, and of data 1"),
    ],
    ids=["empty", "lengths"],
)
def test_what_cannot_be_evaluated_is_said(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Evaluator(Samples()).offline_evaluate(*arguments)


def _dump_and_evaluate(rank, folder):
    for size, batch_size in ((7, 2), (9, 4), (2, 4)):  # by three: filled up, and uneven batches
        path = Path(folder, f"{size}.pkl")
        runner = Runner(
            **runner_arguments(
                Path(folder, "run"),
                val_dataloader=loader_cfg(size=size, batch_size=batch_size),
                val_evaluator=[Accuracy(), DumpResults(path)],
            )
        )
        measured = runner.val()
        predictions = load_predictions(path)
        assert torch.equal(predictions[1], Blobs(size).labels)
        assert Evaluator(Accuracy()).offline_evaluate(predictions, chunk_size=2) == measured
        predicted = runner.predict(loader_cfg(size=size, batch_size=batch_size))
        assert (predicted is None) == (rank > 0)  # the main process has them
        for part, again in zip(predictions, predicted or predictions, strict=True):
            torch.testing.assert_close(part, again)
    metric = Samples()
    assert Evaluator(metric).offline_evaluate(list(range(7)), chunk_size=2) == {"num": 7}
    assert metric.seen == (list(range(7)) if is_main_process() else None)
    assert [one for _, chunk in metric.calls for one in chunk] == list(range(rank, 7, 3))


def test_ranks_write_each_sample_once_in_order_and_share_an_evaluation(run_ranks, tmp_path):
    run_ranks(_dump_and_evaluate, 3, str(tmp_path))


_CONFIG = """
model: {type: "toy:Classifier"}
test_dataloader: {dataset: {type: "toy:Blobs", size: 7}, batch_size: 4, collate_fn: default_collate}
test_cfg: {}
test_evaluator: {type: Accuracy}
randomness: {seed: 0}
"""


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """A folder, where the process is, with a configuration and weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the command adds to
    (tmp_path / "run.yaml").write_text(_CONFIG)
    torch.save({"state_dict": Classifier().state_dict()}, tmp_path / "weights.pth")
    return tmp_path


def test_the_command_writes_predictions_or_metrics_by_the_name_of_the_file(run_folder, capsys):
    command = ["test", "run.yaml", "weights.pth", "--out"]
    assert main([*command, "results.pkl"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert main([*command, "metrics.json"]) == 0
    metrics = json.loads((run_folder / "metrics.json").read_text())
    assert printed == f"accuracy: {metrics['accuracy']}"
    predictions = load_predictions("results.pkl")
    assert Evaluator(Accuracy()).offline_evaluate(predictions, chunk_size=3) == metrics
    for evaluator in ("{'metrics': [{'type': 'Accuracy'}]}", "{'metrics': {'type': 'Accuracy'}}"):
        (run_folder / "of_evaluator.pkl").unlink(missing_ok=True)
        config = _CONFIG.replace("{type: Accuracy}", evaluator)
        (run_folder / "run.yaml").write_text(config)
        assert main([*command, "of_evaluator.pkl"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == printed
        assert _size(load_predictions("of_evaluator.pkl")) == _size(predictions)
