import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from toy import Blobs, loader_cfg

from mm_runner import ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.model import Supervised

BATCH = {"inputs": torch.ones(2, 4), "labels": torch.tensor([0, 1])}


def _pairs(size=24):
    blobs = Blobs(size)
    return loader_cfg(dataset=TensorDataset(blobs.inputs, blobs.labels))


class Weighted(nn.Module):
    """A loss with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, scores, labels):
        return {"loss_class": nn.functional.cross_entropy(self.scale * scores, labels)}


@pytest.mark.parametrize(
    "model",
    [
        Supervised(nn.Linear(4, 3), nn.functional.cross_entropy),
        {
            "type": "Supervised",
            "module": {"type": "torch.nn:Linear", "in_features": 4, "out_features": 3},
            "loss": {"type": "torch.nn:CrossEntropyLoss", "label_smoothing": 0.1},
        },
        {
            "type": "Supervised",
            "module": nn.Linear(4, 3),
            "loss": "torch.nn.functional:cross_entropy",
        },
    ],
    ids=["objects", "configs", "import-path"],
)
def test_a_plain_module_trains_and_is_validated(make_runner, model):
    optim_wrapper = {"optimizer": {"type": "SGD", "lr": 1.0}}
    runner = make_runner(
        model=model,
        train_dataloader=_pairs(),
        val_dataloader=_pairs(9),
        train_cfg={"max_epochs": 10},
        optim_wrapper=optim_wrapper,
    )
    runner.train()
    assert runner.val()["accuracy"] > 0.8
    saved = load_checkpoint_file(runner.work_dir / "epoch_10.pth")["state_dict"]
    assert set(saved) == {"weight", "bias"}


def test_a_batch_that_is_a_mapping_is_taken_by_its_keys(make_runner):
    model = Supervised(nn.Linear(4, 3), loss=Weighted())
    make_runner(model=model, train_cfg={"max_epochs": 1}).train()
    assert model.loss_fn.scale.item() != 1
    assert model(**BATCH).shape == model(BATCH["inputs"]).shape == (2, 3)
    two = Supervised(nn.Bilinear(4, 4, 3), nn.CrossEntropyLoss(), inputs=["a", "b"], targets="y")
    batch = {"a": BATCH["inputs"], "b": BATCH["inputs"], "y": BATCH["labels"], "name": "x"}
    assert set(two(**batch, mode="loss")) == {"loss"}
    outputs, targets = two(**batch, mode="predict")
    assert torch.equal(outputs, two(**batch))
    assert targets is BATCH["labels"]


def test_a_slip_in_a_nested_config_is_named_by_its_path(make_runner):
    module = {"type": "torch.nn:Linear", "in_feature": 4, "out_features": 3}
    model = {"type": "Supervised", "module": module, "loss": "torch.nn.functional:cross_entropy"}
    with pytest.raises(ConfigError, match=r"^model\.module\.in_feature: unknown .*'in_features'"):
        make_runner(model=model)


def test_what_does_not_fit_says_what_is_needed():
    with pytest.raises(ConfigError, match=r"^module: an nn.Module or its config is needed, got 3"):
        Supervised(3, nn.CrossEntropyLoss())
    with pytest.raises(ConfigError, match=r"^loss: a function of"):
        Supervised(nn.Linear(4, 3), nn.CrossEntropyLoss)
    model = Supervised(nn.Linear(4, 3), nn.CrossEntropyLoss(), targets="y")
    with pytest.raises(
        ConfigError, match=r"targets: 'y' was asked for; the batch has 'inputs', 'l"
    ):
        model(**BATCH, mode="loss")
    with pytest.raises(ConfigError, match=r"got 1 part"):
        model(BATCH["inputs"], mode="loss")
