"""Predictions: by ``Runner.predict``, and by the command, in each of its formats."""

import csv
import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from toy import Blobs, Classifier, loader_cfg, weights_of

from mm_runner import ConfigError
from mm_runner.cli import main
from mm_runner.errors import PredictionsError, TorchVersionError
from mm_runner.evaluator import load_predictions
from mm_runner.hooks import EMAHook
from mm_runner.model import BaseModel
from mm_runner.tools import write_predictions
from mm_runner.tools._export import check_export_format

DATA = {"test_dataloader": loader_cfg(size=7)}


class Unlabelled(BaseModel):
    """Predicts from inputs alone."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, inputs, mode="tensor"):  # noqa: ARG002 - of the interface
        return self.linear(inputs)


def expected(model, size=7):
    data = Blobs(size)
    model.eval()
    with torch.no_grad():
        return model(data.inputs, data.labels)


def test_predictions_come_in_the_order_of_the_dataset_without_an_evaluator(make_runner):
    runner = make_runner()
    assert runner.test_loop is None
    runner.model.train()
    scores, labels = runner.predict(DATA["test_dataloader"])
    assert runner.model.training
    assert torch.equal(labels, Blobs(7).labels)
    torch.testing.assert_close(scores, expected(runner.model))
    assert runner.test_loop is None
    with pytest.raises(ConfigError, match=r"^predict\(\): no loader was given"):
        runner.predict()


@pytest.mark.parametrize("kind", ["config", "loader", "configured"])
def test_a_loader_may_be_given(make_runner, kind):
    runner = make_runner()
    loader = {
        "config": loader_cfg(size=5, num_workers=1),
        "loader": DataLoader(Blobs(5), batch_size=2),
        "configured": runner.recipe.given["val_dataloader"],
    }[kind]
    scores, labels = runner.predict(loader)
    assert labels.tolist() == Blobs(len(labels)).labels.tolist()
    torch.testing.assert_close(scores, expected(runner.model, len(labels)))


def test_a_batch_without_labels_gives_the_outputs_alone(make_runner):
    inputs = [{"inputs": row} for row in Blobs(5).inputs]
    loader = {"dataset": inputs, "batch_size": 2, "collate_fn": "default_collate"}
    none = dict.fromkeys(("train_dataloader", "train_cfg", "optim_wrapper"))
    runner = make_runner(model={"type": Unlabelled}, **none)
    torch.testing.assert_close(runner.predict(loader), runner.model(Blobs(5).inputs).detach())


def test_an_evaluation_between_uses_its_own_loop_and_metrics(make_runner):
    runner = make_runner(**DATA, test_evaluator={"type": "Accuracy"})
    accuracy = runner.test()
    loop = runner.test_loop
    assert len(runner.predict()[1]) == 7
    assert runner.test_loop is loop
    assert runner.test() == accuracy


def test_the_average_predicts_after_training_and_from_a_checkpoint(make_runner, tmp_path):
    hook = EMAHook(momentum=0.01)
    runner = make_runner(custom_hooks=[hook])
    runner.train()
    own = weights_of(runner)
    scores, _ = runner.predict(DATA["test_dataloader"])
    assert torch.equal(weights_of(runner), own)
    assert not torch.allclose(scores, expected(runner.model), atol=1e-3)
    other = make_runner(load_from=str(tmp_path / "run" / "epoch_2.pth"))
    torch.testing.assert_close(other.predict(DATA["test_dataloader"])[0], scores)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (None, r"predict\(\): no loader was given, and the Runner has no test_dataloader"),
        (loader_cfg(sampler={"type": "DefaultSampler"}), r"loader: its sampler shuffles"),
        (DataLoader(Blobs(), shuffle=True), r"loader: its sampler shuffles"),
        (loader_cfg(drop_last=True), r"loader\.drop_last: True was given"),
        (loader_cfg(colate_fn=None), r"loader\.colate_fn: unknown argument"),
    ],
    ids=["none", "sampler", "shuffle", "drop_last", "unknown"],
)
def test_a_loader_that_does_not_fit_is_refused(make_runner, loader, message):
    with pytest.raises(ConfigError, match=message):
        make_runner().predict(loader)


SCORES = torch.tensor([[0.5, float("nan")], [2.0, 3.0]])


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_a_table_has_a_column_for_each_number(tmp_path):
    path = tmp_path / "new" / "out.csv"
    write_predictions((SCORES, torch.tensor([0, 1])), path)
    assert rows(path) == [
        ["prediction_0", "prediction_1", "target"],
        ["0.5", "nan", "0"],
        ["2.0", "3.0", "1"],
    ]
    grid = {"grid": torch.arange(8).reshape(2, 2, 2), "name": ["a", "b, c"], "none": None}
    write_predictions(grid, path)
    assert rows(path)[0] == ["grid_0_0", "grid_0_1", "grid_1_0", "grid_1_1", "name"]
    assert rows(path)[2] == ["4", "5", "6", "7", "b, c"]
    samples = [{"box": torch.ones(2), "score": 0.5}, {"box": torch.zeros(2), "score": 1}]
    write_predictions(samples, path)
    assert rows(path) == [["box_0", "box_1", "score"], ["1.0", "1.0", "0.5"], ["0.0", "0.0", "1"]]


def test_a_line_holds_the_prediction_for_a_sample(tmp_path):
    path = tmp_path / "out.jsonl"
    write_predictions((SCORES, torch.tensor([0, 1])), path)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {"prediction": [0.5, None], "target": 0}
    assert second == {"prediction": [2.0, 3.0], "target": 1}
    write_predictions([{"boxes": torch.ones(2, 1), "name": "é"}, {"boxes": torch.ones(0, 1)}], path)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(one) for one in lines] == [
        {"boxes": [[1.0], [1.0]], "name": "é"},
        {"boxes": []},
    ]


def test_arrays_keep_their_types(tmp_path):
    numpy = pytest.importorskip("numpy")
    write_predictions((SCORES, torch.tensor([0, 1]), ["a", "b"]), tmp_path / "out.npz")
    with numpy.load(tmp_path / "out.npz", allow_pickle=False) as arrays:
        assert list(arrays) == ["0", "1", "2"]
        assert numpy.array_equal(arrays["0"], SCORES.numpy(), equal_nan=True)
        assert arrays["1"].dtype == "int64"
        assert arrays["2"].tolist() == ["a", "b"]
    write_predictions(SCORES.bfloat16(), tmp_path / "out.npz")
    with numpy.load(tmp_path / "out.npz") as arrays:
        assert numpy.array_equal(arrays["prediction"], SCORES.numpy(), equal_nan=True)


@pytest.mark.parametrize(
    ("predictions", "name", "error", "message"),
    [
        (SCORES, "out.txt", ConfigError, r"ends in \.jsonl, \.csv, .*\.pt is needed"),
        ((SCORES, [1]), "out.csv", ConfigError, r"hold 2 and 1 samples"),
        (SCORES, "a_file/out.csv", PredictionsError, r"out\.csv could not be written: "),
    ],
    ids=["ending", "sizes", "unwritable"],
)
def test_what_does_not_fit_is_refused_and_leaves_no_file(
    tmp_path, predictions, name, error, message
):
    (tmp_path / "a_file").touch()
    with pytest.raises(error, match=message):
        write_predictions(predictions, tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["a_file"]


@pytest.mark.parametrize(
    ("predictions", "name", "message"),
    [
        ([torch.ones(1), torch.ones(2)], "out.csv", r"prediction: samples differ"),
        ([{"a": [1]}, {"a": [2]}], "out.npz", r"out.npz: a: samples differ"),
    ],
    ids=["ragged", "nested"],
)
def test_what_does_not_fit_the_format_is_saved_in_ours(tmp_path, predictions, name, message):
    pytest.importorskip("numpy")
    with pytest.raises(ConfigError, match=f"{message}.* The predictions are in .*{name}.pt"):
        write_predictions(predictions, tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == [f"{name}.pt"]
    assert str(load_predictions(tmp_path / f"{name}.pt")) == str(predictions)


_CONFIG = """
model: {type: "toy:Classifier"}
test_dataloader: &data
  {dataset: {type: "toy:Blobs", size: 7}, batch_size: 4, collate_fn: default_collate}
val_dataloader: {<<: *data, dataset: {type: "toy:Blobs", size: 5}}
val_cfg: {}
val_evaluator: {type: Accuracy}
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


def test_the_command_writes_the_predictions_of_a_checkpoint(run_folder, capsys):
    command = ["predict", "run.yaml", "weights.pth", "--out"]
    assert main([*command, "out.pt"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "out.pt"
    scores, labels = load_predictions("out.pt")
    model = Classifier()
    model.load_state_dict(torch.load("weights.pth", weights_only=True)["state_dict"])
    torch.testing.assert_close(scores, expected(model))
    assert main([*command, "out.csv", "--data", "val"]) == 0
    table = rows(run_folder / "out.csv")
    assert [int(row[-1]) for row in table[1:]] == labels[:5].tolist()
    numbers = torch.tensor([[float(one) for one in row[:-1]] for row in table[1:]])
    torch.testing.assert_close(numbers, expected(model, 5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "out.xlsx"], r"out.xlsx: a path that ends in .jsonl"),
        (["--out", "run.yaml/out.csv"], r"--out: run.yaml/out.csv was given, and it cannot be"),
        (
            ["--out", "out.csv", "--data", "val", "--cfg-options", "val_dataloader=None"],
            r"val_dataloader: this key is missing",
        ),
    ],
    ids=["ending", "unwritable", "missing"],
)
def test_the_command_refuses_early(run_folder, capsys, arguments, message):
    before = set(run_folder.iterdir())
    assert main(["predict", "run.yaml", "weights.pth", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert set(run_folder.iterdir()) - before <= {run_folder / "work_dirs"}


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        ("model.pth", ConfigError, r"ends in \.safetensors, \.pt2, \.onnx is needed"),
        ("model.pt2", TorchVersionError, r"\.pt2 needs torch 2\.6; this is"),
        ("model.onnx", ConfigError, r"needed: pip install 'mm-runner\[export\]'"),
    ],
    ids=["ending", "torch", "extra"],
)
def test_an_export_that_is_not_possible_is_refused_before_the_model_is_built(out, error, message):
    has_export = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 6)
    if out == "model.pt2" and has_export:
        pytest.skip("this torch exports")
    if out == "model.onnx" and (not has_export or find_spec("onnx") is not None):
        pytest.skip("the extra is installed, or torch is too old for it")
    with pytest.raises(error, match=message):
        check_export_format(Path(out))


def test_the_command_refuses_weights_of_another_model(run_folder, capsys):
    weights = Classifier().state_dict()
    del weights["layers.3.bias"]
    torch.save({"state_dict": weights}, run_folder / "part.pth")
    assert main(["predict", "run.yaml", "part.pth", "--out", "out.csv"]) == 1
    assert "missing: layers.3.bias" in capsys.readouterr().err
