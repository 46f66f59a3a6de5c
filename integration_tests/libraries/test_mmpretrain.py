"""mmpretrain's own configurations: trained, killed, resumed, compared with MMEngine's Runner."""
# ruff: noqa: E402 - its tests are skipped where mmpretrain is not installed

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

mmpretrain = pytest.importorskip("mmpretrain")
from PIL import Image

COLORS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "grey": (90, 90, 90)}
SIZE = 32

# What every recipe changes: small images of four classes, few steps, and as many random numbers.
COMMON = f"""
work_dir = "work"
load = dict(type="LoadImageFromFile")
crop = dict(type="RandomResizedCrop", scale={SIZE})
train_pipeline = [load, crop, dict(type="RandomFlip", prob=0.5), dict(type="PackInputs")]
test_pipeline = [load, dict(type="Resize", scale={SIZE}), dict(type="PackInputs")]
def images(split, pipeline):
    return dict(
        batch_size=4,
        num_workers=1,
        persistent_workers=False,
        dataset=dict(
            _delete_=True, type="CustomDataset", data_root=f"images/{{split}}", pipeline=pipeline
        ),
    )
train_dataloader = images("train", train_pipeline)
train_cfg = dict(max_epochs=3)
param_scheduler = [
    dict(type="LinearLR", start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type="CosineAnnealingLR", by_epoch=True, begin=1),
]
env_cfg = dict(dist_cfg=dict(backend="gloo"))
default_hooks = dict(checkpoint=dict(interval=1, max_keep_ckpts=10))
randomness = dict(seed=0)
"""
CLASSIFIED = """
data_preprocessor = dict(num_classes=4)
val_dataloader = test_dataloader = images("val", test_pipeline)
val_evaluator = test_evaluator = dict(topk=(1,))
"""
RECIPES = {
    "resnet": (
        "resnet/resnet18_8xb32_in1k.py",
        CLASSIFIED
        + """
model = dict(
    backbone=dict(base_channels=8, stem_channels=8),
    head=dict(num_classes=4, in_channels=64, topk=(1,)),
)
""",
    ),
    "swin": (
        "swin_transformer/swin-tiny_16xb64_in1k.py",
        CLASSIFIED
        + """
arch = dict(embed_dims=12, depths=[1, 1], num_heads=[2, 2])
model = dict(
    backbone=dict(
        _delete_=True, type="SwinTransformer", arch=arch, img_size=32, window_size=4,
        out_indices=(1,),
    ),
    head=dict(num_classes=4, in_channels=24),
    train_cfg=dict(augments=[dict(type="Mixup", alpha=0.8), dict(type="CutMix", alpha=1.0)]),
)
""",
    ),
    "vit": (
        "vision_transformer/vit-base-p16_64xb64_in1k-384px.py",
        CLASSIFIED
        + """
arch = dict(_delete_=True, embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48)
model = dict(
    backbone=dict(arch=arch, img_size=32, patch_size=8),
    head=dict(num_classes=4, in_channels=24),
)
""",
    ),
    "mae": (
        "mae/mae_vit-base-p16_8xb512-amp-coslr-300e_in1k.py",
        """
arch = dict(_delete_=True, embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48)
model = dict(
    backbone=dict(arch=arch, img_size=32, patch_size=8, mask_ratio=0.75),
    neck=dict(
        num_patches=16, patch_size=8, embed_dim=24, decoder_embed_dim=16, decoder_depth=1,
        decoder_num_heads=2,
    ),
    head=dict(patch_size=8),
)
""",
    ),
}


def write_images(folder):
    """Write small images of noise about one color for each class."""
    chance = np.random.default_rng(0)
    for split, number in (("train", 8), ("val", 4)):
        for name, color in COLORS.items():
            (folder / split / name).mkdir(parents=True)
            for index in range(number):
                noise = chance.integers(0, 120, (40, 40, 3))
                picture = (noise // 2 + np.array(color) // 2).astype("uint8")
                Image.fromarray(picture).save(folder / split / name / f"{index}.png")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "images"
    write_images(folder)
    return folder


@pytest.fixture
def folder(tmp_path, images):
    (tmp_path / "images").symlink_to(images)
    return tmp_path


def start(folder, *arguments, ranks=2):
    """Start ``mm-runner train`` on two ranks, in a process group of its own."""
    command = [sys.executable, "-m", "mm_dist", "run", f"--nproc-per-node={ranks}"]
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [*command, "-m", "mm_runner", "train", "recipe.py", "--amp", "bfloat16", *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def run(folder, *command):
    """Run a Python command in ``folder``; return what it prints."""
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def weights(folder):
    return torch.load(folder / "work" / "epoch_3.pth", weights_only=True)["state_dict"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_killed_and_resumes_bit_by_bit(folder, recipe):
    base, text = RECIPES[recipe]
    (folder / "recipe.py").write_text(f"_base_ = 'mmpretrain::{base}'\n{COMMON}{text}")
    killed = start(folder)
    while not (folder / "work" / "epoch_1.pth").exists():
        assert killed.poll() is None, (folder / "log").read_text()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (folder / "work" / "epoch_3.pth").exists(), "it was to be killed before its end"
    assert start(folder, "--resume").wait() == 0, (folder / "log").read_text()
    resumed = weights(folder)
    assert start(folder, "--overwrite").wait() == 0, (folder / "log").read_text()
    whole = weights(folder)
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


FIXED = """
train_dataloader["dataset"]["pipeline"] = test_pipeline
train_dataloader.update(sampler=dict(type="DefaultSampler", shuffle=False), num_workers=0)
optim_wrapper = dict(optimizer=dict(lr=0.05))
"""

INFERENCE = """
import mmpretrain, torch
from mmengine.config import Config
model = mmpretrain.get_model(Config.fromfile("recipe.py"), pretrained="work_mm_runner/epoch_3.pth")
(found,) = mmpretrain.ImageClassificationInferencer(model)("images/val/red/0.png")
print("", found["pred_class"], *model._dataset_meta["classes"])
"""


def test_losses_and_checkpoints_are_those_of_mmengine(folder):
    """Equal losses of 24 steps of SGD in float32; each reads the other's checkpoint."""
    configs = Path(mmpretrain.__file__).parent / ".mim" / "configs"
    base, text = RECIPES["resnet"]
    recipe = f"_base_ = {str(configs / base)!r}\n{COMMON}{text}{FIXED}"
    (folder / "recipe.py").write_text(recipe)
    begin = "from mm_runner import Runner; from mm_runner.config import Config; import torch;"
    save = "torch.save(Runner.from_cfg(cfg).model.state_dict(), 'weights.pth')"
    run(folder, "-c", f"{begin} cfg = Config.fromfile('recipe.py'); {save}")
    losses = []
    for which in ("mmengine", "mm_runner"):
        script = Path(__file__).with_name("compared_run.py")
        told = run(folder, script, which, "recipe.py", "weights.pth")
        losses.append(json.loads(told.splitlines()[-1]))
    assert losses[0] == losses[1]
    assert len(losses[0]) == 24

    found, *classes = run(folder, "-c", INFERENCE).split()[-5:]
    assert classes == sorted(COLORS)
    assert found in classes
    run(folder, "-m", "mm_runner", "convert", "work_mmengine/epoch_3.pth", "theirs.pth")
    tested = [
        run(folder, "-m", "mm_runner", "test", "recipe.py", file, "--work-dir", "tested")
        for file in ("theirs.pth", "work_mm_runner/epoch_3.pth")
    ]
    assert tested[0].splitlines()[-1] == tested[1].splitlines()[-1]


NEW_STYLE_BASE = """
from mmengine.hooks import CheckpointHook, IterTimerHook, LoggerHook, ParamSchedulerHook
from mmengine.runner import LogProcessor
from mmengine.visualization import LocalVisBackend
from mmpretrain.engine import VisualizationHook
from mmpretrain.visualization import UniversalVisualizer

default_scope = "mmpretrain"
work_dir = "work"
default_hooks = dict(
    timer=dict(type=IterTimerHook),
    logger=dict(type=LoggerHook, interval=100),
    param_scheduler=dict(type=ParamSchedulerHook),
    checkpoint=dict(type=CheckpointHook, interval=1),
    visualization=dict(type=VisualizationHook, enable=False),
)
env_cfg = dict(dist_cfg=dict(backend="gloo"))
visualizer = dict(type=UniversalVisualizer, vis_backends=[dict(type=LocalVisBackend)])
log_processor = dict(type=LogProcessor, window_size=10)
randomness = dict(seed=0)
"""
NEW_STYLE = """
from mmcv.transforms import Resize
from mmengine.config import read_base
from mmengine.dataset import DefaultSampler, default_collate
from mmengine.evaluator import Evaluator
from mmengine.hooks import EMAHook
from mmengine.model import ExponentialMovingAverage
from mmengine.optim import CosineAnnealingLR, DefaultOptimWrapperConstructor, LinearLR, OptimWrapper
from mmengine.runner import EpochBasedTrainLoop, TestLoop, ValLoop
from mmpretrain.datasets import CustomDataset, LoadImageFromFile, PackInputs
from mmpretrain.evaluation import Accuracy
from mmpretrain.models import GlobalAveragePooling, ImageClassifier, LinearClsHead, ResNet
from torch.optim import AdamW

with read_base():
    from .base import *

model = dict(
    type=ImageClassifier,
    data_preprocessor=dict(num_classes=4, mean=[120.0] * 3, std=[60.0] * 3),
    backbone=dict(type=ResNet, depth=18, out_indices=(3,), base_channels=8, stem_channels=8),
    neck=dict(type=GlobalAveragePooling),
    head=dict(type=LinearClsHead, num_classes=4, in_channels=64, topk=(1,)),
)
pipeline = [
    dict(type=LoadImageFromFile), dict(type=Resize, scale=(32, 32)), dict(type=PackInputs),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(type=CustomDataset, data_root="images/train", pipeline=pipeline),
    sampler=dict(type=DefaultSampler, shuffle=True),
    collate_fn=dict(type=default_collate),
)
val_dataloader = test_dataloader = dict(
    batch_size=8,
    num_workers=0,
    dataset=dict(type=CustomDataset, data_root="images/val", pipeline=pipeline),
    sampler=dict(type=DefaultSampler, shuffle=False),
)
val_evaluator = dict(type=Accuracy, topk=(1,))
test_evaluator = dict(type=Evaluator, metrics=[val_evaluator])
train_cfg, val_cfg, test_cfg = (
    dict(type=EpochBasedTrainLoop, max_epochs=2), dict(type=ValLoop), dict(type=TestLoop),
)
optim_wrapper = dict(
    type=OptimWrapper,
    optimizer=dict(type=AdamW, lr=1e-3),
    constructor=DefaultOptimWrapperConstructor,
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
param_scheduler = [
    dict(type=LinearLR, start_factor=0.1, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(type=CosineAnnealingLR, by_epoch=True, begin=1),
]
custom_hooks = [dict(type=EMAHook, ema_type=ExponentialMovingAverage, momentum=0.1)]
"""


def test_a_config_that_imports_classes(folder):
    (folder / "base.py").write_text(NEW_STYLE_BASE)
    (folder / "recipe.py").write_text(NEW_STYLE)
    command = ("-m", "mm_runner")
    assert "1,200 parameters in 40 tensors; lr 0.001, weight_decay 0" in run(
        folder, *command, "check", "recipe.py"
    )
    told = run(folder, *command, "train", "recipe.py", "--amp", "bfloat16")
    assert "AdamW in AmpOptimWrapper" in told
    assert "  mmpretrain   model ImageClassifier, " in told
    assert "evaluator Accuracy" not in told
    tested = run(folder, *command, "test", "recipe.py", "work/epoch_2.pth")
    assert "accuracy/top1: " in tested.splitlines()[-1]
