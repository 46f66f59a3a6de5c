"""Several views of each sample, and one prediction."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset
from toy import Blobs, Classifier, runner_arguments
from typing_extensions import override

from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.cli import main
from mm_runner.hooks import PrepareTTAHook
from mm_runner.model import BaseModel, BaseTTAModel


class Averaged(BaseTTAModel):
    def merge_preds(self, data_samples_list):
        return [
            (sum(scores for scores, _ in views) / len(views), views[0][1])
            for views in data_samples_list
        ]


class Joined(BaseTTAModel):
    """Of a model that returns a list: what it said of each view."""

    def merge_preds(self, data_samples_list):
        return [{"said": [view["name"] for view in views]} for views in data_samples_list]


class Names(BaseModel):
    def forward(self, inputs, mode="tensor"):
        assert mode == "predict"
        assert not self.training
        return [{"name": one} for one in inputs]


class Returns(BaseTTAModel):
    def merge_preds(self, data_samples_list):
        """Return nothing."""


class Views(Dataset):
    """Three views of each point; the labels are the same for all."""

    def __init__(self, size=7, num_views=3):
        self.blobs, self.num_views = Blobs(size), num_views

    def __len__(self):
        return len(self.blobs)

    @override
    def __getitem__(self, index):
        sample = self.blobs[index]
        views = [sample["inputs"] * (1 + number) for number in range(self.num_views)]
        return {"inputs": views, "labels": sample["labels"]}


def test_tensors_of_views_are_merged_sample_by_sample():
    model = Classifier().eval()
    inputs = [torch.randn(5, 4) for _ in range(3)]
    labels = torch.arange(5) % 3
    scores, merged_labels = Averaged(model).test_step({"inputs": inputs, "labels": labels})
    expected = torch.stack([model.layers(one) for one in inputs]).mean(0)
    torch.testing.assert_close(scores, expected)
    assert torch.equal(merged_labels, labels)
    again, _ = Averaged(model).val_step([inputs, labels])
    assert torch.equal(again, scores)


def test_lists_of_predictions_are_merged_as_mmengine_has_them():
    # As pseudo_collate puts two samples of three views together.
    data = {"inputs": [["a1", "b1"], ["a2", "b2"], ["a3", "b3"]]}
    merged = Joined(Names().eval()).test_step(data)
    assert merged == [{"said": ["a1", "a2", "a3"]}, {"said": ["b1", "b2", "b3"]}]


def test_what_merge_preds_returns_is_checked():
    model = Returns(Classifier())
    with pytest.raises(ConfigError, match=r"Returns\.merge_preds returned None for 2 samples"):
        model.test_step({"inputs": [torch.ones(2, 4)] * 2, "labels": torch.ones(2)})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"inputs": [1, 2], "labels": [1]},
            r"one entry for each view; there are 1 and 2\.",
        ),
        ([[], []], r"one entry for each view; there are 0"),
        (torch.ones(2), r"is a dict or a list of parts, got Tensor"),
    ],
    ids=["lengths", "no-view", "tensor"],
)
def test_a_batch_without_views_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        Averaged(Classifier()).test_step(data)


def test_what_a_model_is_made_of_is_checked():
    built = Averaged({"type": Classifier, "dropout": 0.5}, {"type": "BaseDataPreprocessor"})
    assert isinstance(built.module, Classifier)
    with pytest.raises(ConfigError, match=r"module: an nn\.Module or its config is needed, got 3"):
        Averaged(3)
    with pytest.raises(ConfigError, match=r"test_step\(data\) is needed.*Linear has none"):
        Averaged(nn.Linear(1, 1))


def _test_arguments(work_dir, size=7, **overrides):
    return runner_arguments(
        work_dir,
        test_dataloader={
            "dataset": Views(size),
            "batch_size": 2,
            "collate_fn": "default_collate",
        },
        test_cfg={},
        test_evaluator={"type": "Accuracy"},
        custom_hooks=[{"type": "PrepareTTAHook", "tta_cfg": {"type": Averaged}}],
        **overrides,
    )


def _accuracy_of_views(model, size):
    views = Views(size)
    hits = 0
    for index in range(size):
        sample = views[index]
        scores = sum(model.layers(view) for view in sample["inputs"])
        hits += int(scores.argmax() == sample["labels"])
    return hits / size


def test_the_hook_merges_in_tests_and_in_nothing_else(tmp_path):
    runner = Runner(**_test_arguments(tmp_path / "run", model=Classifier()))
    model = runner.model
    runner.train()
    for _ in range(2):
        accuracy = runner.test()["accuracy"]
        assert accuracy == pytest.approx(_accuracy_of_views(model, 7))
    assert runner.model is model
    assert not any(isinstance(module, BaseTTAModel) for module in runner.model.modules())
    assert 0 <= runner.val()["accuracy"] <= 1  # of single views


def test_the_hook_refuses_wrong_arguments(make_runner):
    with pytest.raises(ConfigError, match=r"^custom_hooks\[0\]\.tta_cfg\.dropuot: unknown arg"):
        make_runner(
            custom_hooks=[{"type": "PrepareTTAHook", "tta_cfg": {"type": Averaged, "dropuot": 1}}]
        )
    with pytest.raises((ConfigError, ComponentNotFoundError), match=r"No model named 'Averagd'"):
        PrepareTTAHook({"type": "Averagd"})


class Piped(Views):
    """Makes as many views as its pipeline has steps, as MMEngine's datasets would."""

    def __init__(self, size, pipeline):
        super().__init__(size, len(pipeline))


_CONFIG = """
model: {type: "toy:Classifier"}
test_dataloader:
  dataset:
    {type: RepeatDataset, times: 1, dataset: {type: "test_tta:Piped", size: 7, pipeline: [one]}}
  batch_size: 2
  collate_fn: default_collate
test_cfg: {}
test_evaluator: {type: Accuracy}
tta_model: {type: "test_tta:Averaged"}
tta_pipeline: [one, two, three]
"""


def test_the_command_tests_by_views_on_request(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the command adds to
    torch.manual_seed(0)
    model = Classifier()
    torch.save({"state_dict": model.state_dict()}, "weights.pth")
    Path("run.yaml").write_text(_CONFIG)
    assert main(["test", "run.yaml", "weights.pth", "--tta"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == f"accuracy: {_accuracy_of_views(model, 7)}"
    for changes, message in (
        ("tta_model: null", "run.yaml:10: tta_model: --tta was given, and this key is missing"),
        ("test_dataloader.dataset.dataset: [1]", "tta_pipeline: --tta was given, and test_data"),
    ):
        command = ["test", "run.yaml", "weights.pth", "--tta", "--cfg-options"]
        assert main([*command, changes.replace(": ", "=").replace("null", "None")]) == 1
        assert message in capsys.readouterr().err
