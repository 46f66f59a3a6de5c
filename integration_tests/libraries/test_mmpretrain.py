"""mmpretrain's own configurations train, are killed, and resume bit by bit; two ranks, bfloat16."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("mmpretrain")
from mmengine.dataset import Compose  # noqa: E402 - mmpretrain needs it
from mmpretrain import get_model, inference_model  # noqa: E402
from PIL import Image  # noqa: E402

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
