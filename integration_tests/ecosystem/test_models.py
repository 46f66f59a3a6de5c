"""Models of transformers, PEFT, timm and torchvision, as they are: trained, resumed, loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
from foreign_models import MODELS, make_runner

from mm_runner import Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook

HERE = Path(__file__).parent
# The libraries warn of one another.
pytestmark = pytest.mark.filterwarnings("default")


class Killed(Exception):  # noqa: N818 - not an error
    """What Stop raises."""


class Stop(Hook):
    """Ends a run as a kill would, in the middle of its second epoch."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):  # noqa: ARG002
        if runner.iter == 9:
            raise Killed


class SaveEachStep(Hook):
    """Saves before the stop, so that the middle of an epoch is resumed."""

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):  # noqa: ARG002
        if runner.iter == 7:
            runner.save_checkpoint(runner.work_dir, "iter_8.pth")


@pytest.mark.parametrize("kind", ["bert", "lora", "vit", "resnet"])
def test_a_run_that_is_killed_resumes_bit_by_bit(kind, tmp_path):
    if kind in ("vit", "resnet"):
        pytest.importorskip("timm" if kind == "vit" else "torchvision")
    if kind == "lora":
        pytest.importorskip("peft")
    make_runner(kind, tmp_path / "whole").train()
    with pytest.raises(Killed):
        make_runner(kind, tmp_path / "run", SaveEachStep(), Stop()).train()
    make_runner(kind, tmp_path / "run", resume=True).train()
    whole, run = (
        load_checkpoint_file(tmp_path / name / "epoch_3.pth")["state_dict"]
        for name in ("whole", "run")
    )
    assert list(whole) == list(run)
    assert all(torch.equal(whole[name], run[name]) for name in whole)


def test_names_are_those_of_the_library_and_only_adapters_move(tmp_path):
    peft = pytest.importorskip("peft")
    runner = make_runner("lora", tmp_path)
    before = {name: one.clone() for name, one in runner.model.net.state_dict().items()}
    runner.train()
    saved = load_checkpoint_file(tmp_path / "epoch_3.pth")["state_dict"]
    assert list(saved) == list(before)
    changed = {name for name, one in saved.items() if not torch.equal(one, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    runner.model.net.save_pretrained(tmp_path / "adapter")
    assert peft.PeftConfig.from_pretrained(tmp_path / "adapter").r == 2


@pytest.mark.parametrize("size", ["10GB", "4KB"], ids=["one file", "shards"])
def test_a_directory_of_the_library_is_loaded_and_a_new_head_kept(tmp_path, size):
    import transformers  # noqa: PLC0415

    config = dict(MODELS["bert"]["config"], num_labels=5)
    config.pop("type")
    source = transformers.BertForSequenceClassification(transformers.BertConfig(**config))
    source.save_pretrained(tmp_path / "bert", max_shard_size=size)
    runner = make_runner("bert", tmp_path / "run", load_from=str(tmp_path / "bert"))
    head = runner.model.net.classifier.weight.clone()
    runner.load_or_resume()
    model = runner.model.net.eval()
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(source.eval().bert(tokens)[0], model.bert(tokens)[0])
    assert torch.equal(model.classifier.weight, head)
    log = next(runner.log_dir.glob("*.log")).read_text()
    total = len(source.state_dict())
    assert f"{total - 2} of the {total} entries of the model are loaded" in log


def test_tied_weights_are_not_missing(tmp_path):
    import transformers  # noqa: PLC0415

    config = dict(MODELS["lora"]["model"]["config"])
    config.pop("type")
    source = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))
    source.save_pretrained(tmp_path / "gpt2")
    target = transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))
    runner = Runner(target, str(tmp_path / "run"), load_from=str(tmp_path / "gpt2"))
    runner.load_or_resume()
    assert torch.equal(target.lm_head.weight, source.lm_head.weight)
    assert "missing" not in next(runner.log_dir.glob("*.log")).read_text()


def test_two_ranks_train_the_same_model(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "foreign_models.py", "bert", str(tmp_path)],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert load_checkpoint_file(tmp_path / "epoch_3.pth")["meta"]["iter"] == 9


class Boxes(torch.utils.data.Dataset):
    """Images with one box each."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        box = torch.tensor([[4.0, 4.0, 20.0 + index, 24.0]])
        return torch.rand(3, 32, 32), {"boxes": box, "labels": torch.tensor([1])}


def as_lists(samples):
    images, targets = zip(*samples, strict=True)
    return list(images), list(targets)


def test_a_detector_trains_by_its_dict_of_losses(tmp_path):
    detection = pytest.importorskip("torchvision").models.detection
    model = detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=2, min_size=32, max_size=32
    )
    runner = Runner(
        model,
        str(tmp_path),
        train_dataloader={"dataset": Boxes(), "batch_size": 2, "collate_fn": as_lists},
        train_cfg={"max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.001}},
    )
    runner.train()
    logged = (runner.log_dir / "scalars.jsonl").read_text()
    assert "loss_rpn_box_reg" in logged
    found = runner.model.eval()([torch.rand(3, 32, 32)], mode="predict")
    assert set(found[0]) == {"boxes", "labels", "scores"}
