"""Exported files compute what the trained model does, without mm-runner."""

import re
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors
import torch
from safetensors.torch import load_file, load_model
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from mm_runner import ConfigError, Runner
from mm_runner.cli import main
from mm_runner.hooks import EMAHook
from mm_runner.model import BaseModel, Supervised, unwrap_model
from mm_runner.tools import export_model

SUFFIXES = (".safetensors", ".pt2", ".onnx")


class Images(Dataset):
    """Dicts of ``images`` of shape ``(3, 8, 8)``, ``labels``, and a name."""

    def __init__(self, size=12):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(size, 3, 8, 8, generator=generator)
        self.labels = torch.arange(size) % 5

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"images": self.images[index], "labels": self.labels[index], "name": f"{index}"}


def body():
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 5))


class Classifier(BaseModel):
    """What ``change`` does to the scores is up to each test."""

    def __init__(self, change=None):
        super().__init__()
        self.body, self.change = body(), change

    def forward(self, images, labels, name=None, mode="tensor"):  # noqa: ARG002 - of the batch
        scores = self.body(images)
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        if mode == "predict":
            return scores, labels
        return scores if self.change is None else self.change(scores, labels)


class Tied(BaseModel):
    """A head that is the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens, mode="tensor"):  # noqa: ARG002 - of the interface
        hidden = self.embedding(tokens)
        return {"logits": self.head(hidden), "more": [hidden.mean(1), "text", None]}


def loader(dataset, **options):
    return {"dataset": dataset, "batch_size": 4, "collate_fn": "default_collate", **options}


def settings(work_dir, model, dataset, **changes):
    return {
        "model": model,
        "work_dir": str(work_dir),
        "train_dataloader": loader(dataset),
        "train_cfg": {"by_epoch": True, "max_epochs": 2},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.05}},
        "randomness": {"seed": 0},
        **changes,
    }


def batch(size=4):
    data = Images(size)
    return {"images": data.images, "labels": data.labels, "name": [*"abcd"]}


def run_file(path, *inputs):
    """Return what a file of a program computes, by the field's own libraries."""
    if path.suffix == ".pt2":
        outputs = torch.export.load(path).module()(*inputs)
        return list(outputs.values()) if isinstance(outputs, dict) else [outputs]
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(path)
    names = [one.name for one in session.get_inputs()]
    found = session.run(None, {k: v.numpy() for k, v in zip(names, inputs, strict=True)})
    return [torch.from_numpy(np.asarray(one)) for one in found]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with an average, its configuration beside its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "run.yaml").write_text(
        f"""
model: {{type: "{__name__}:Classifier"}}
work_dir: {folder}
test_dataloader:
  dataset: {{type: "{__name__}:Images", size: 7}}
  batch_size: 4
  num_workers: 1
  collate_fn: default_collate
compile: true
"""
    )
    model = {"type": Classifier}
    cfg = settings(folder, model, Images(), custom_hooks=[EMAHook(momentum=0.01)])
    runner = Runner(**cfg)
    runner.train()
    return folder, runner


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_command_exports_the_average_of_a_checkpoint(trained, capsys, monkeypatch, suffix):
    folder, runner = trained
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    out = folder / "new" / f"model{suffix}"
    assert main(["export", "run.yaml", "epoch_2.pth", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"verified with batches of 4, 5, 1: largest difference \d", printed)
    assert ": images [batch, 3, 8, 8]" in printed
    assert " -> output [batch, 5]\n" in printed
    assert [one.name for one in out.parent.glob(f"*{suffix}")] == [out.name]
    images = Images(3).images
    own = unwrap_model(runner.model).eval()
    average = Classifier().eval()
    checkpoint = torch.load("epoch_2.pth", weights_only=True)
    average.load_state_dict(checkpoint["state_dict"])
    expected = average.body(images).detach()
    assert not torch.allclose(expected, own.body(images), atol=1e-2)
    if suffix == ".safetensors":
        plain = Classifier().eval()
        plain.load_state_dict(load_file(out))
        found = [plain.body(images).detach()]
    else:
        assert "labels" not in printed  # the outputs do not depend on them
        found = run_file(out, images)
    torch.testing.assert_close(found, [expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_supervised_module_is_exported_without_its_wrapper(tmp_path, suffix):
    module, data = body(), Images(6)
    model = Supervised(module, loss=nn.CrossEntropyLoss())
    path = tmp_path / f"model{suffix}"
    text = export_model(model, path, (data.images, data.labels))
    assert "input [batch, 3, 8, 8] -> output [batch, 5]\n" in text.replace(str(path), "")
    images = Images(9).images
    found = body().eval()
    if suffix == ".safetensors":
        load_model(found, path, strict=True)
        with safetensors.safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
        found = [found(images).detach()]
    else:
        found = run_file(path, images)
    torch.testing.assert_close(found, [module(images).detach()], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_shared_weights_and_outputs_by_name(tmp_path, suffix):
    model, path = Tied().eval(), tmp_path / f"model{suffix}"
    text = export_model(model, path, {"tokens": torch.arange(6).reshape(2, 3)})
    assert "tokens [batch, 3] -> logits [batch, 3, 7]; more_0 [batch, 4]\n" in text
    tokens = torch.arange(15).reshape(5, 3) % 7
    if suffix == ".safetensors":
        assert list(load_file(path)) == ["embedding.weight"]
        other = Tied()
        load_model(other, path)
        assert torch.equal(other.head.weight, model.embedding.weight)
    else:
        outputs = model(tokens)
        expected = [outputs["logits"].detach(), outputs["more"][0].detach()]
        torch.testing.assert_close(run_file(path, tokens), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_inputs_that_count_stay(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    text = export_model(Classifier(lambda scores, labels: scores[:, 0] + labels), path, batch())
    assert ": images [batch, 3, 8, 8]; labels [batch] -> output [batch]\n" in text


@pytest.mark.parametrize(
    ("suffix", "change", "message"),
    [
        (
            ".pt2",
            lambda scores, _: scores + torch.rand(()),
            r"output is not the model's.* random numbers",
        ),
        (
            ".onnx",
            lambda scores, _: scores + torch.rand(()),
            r"output is not the model's.* random numbers",
        ),
        (
            ".safetensors",
            lambda x, _: x + torch.rand(()),
            r"output is not the model's.* random numbers",
        ),
        (".pt2", lambda x, _: x if x.sum() > 0 else -x, r"cannot trace Classifier"),
        (".pt2", lambda scores, _: scores.view(4, 5), r"cannot trace Classifier for any batch"),
    ],
    ids=["random", "random_onnx", "random_weights", "values", "batch_size"],
)
def test_what_cannot_be_exported_is_refused_and_leaves_no_file(tmp_path, suffix, change, message):
    model = Classifier(change)
    with pytest.raises((ConfigError, RuntimeError), match=message):
        export_model(model, tmp_path / "out" / f"model{suffix}", batch())
    assert not any(tmp_path.rglob("*.*"))


def test_samples_that_are_not_stacked_are_refused(tmp_path):
    lists = {key: [*value] for key, value in batch().items()}
    with pytest.raises(ConfigError, match=r"holds 'images', 'labels', 'name'.*default_collate"):
        export_model(Classifier(), tmp_path / "model.pt2", lists)


def test_a_single_sample_gives_a_program_of_any_batch_size(tmp_path):
    data = TensorDataset(Images().images, Images().labels)
    model = Supervised(body(), loss=nn.CrossEntropyLoss())
    example = [one[:1] for one in data.tensors]
    assert "batches of 2, 3, 1" in export_model(model, tmp_path / "model.pt2", example)
    assert run_file(tmp_path / "model.pt2", data.tensors[0])[0].shape == (12, 5)
