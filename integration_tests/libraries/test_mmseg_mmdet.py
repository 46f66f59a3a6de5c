"""mmsegmentation and mmdetection: trained by their configurations, killed, resumed bit by bit."""

import json
import os
import signal
import time

import numpy as np
import pytest
import torch

pytest.importorskip("mmcv.ops")
pytest.importorskip("mmseg")
pytest.importorskip("mmdet")
from PIL import Image
from test_mmpretrain import start

COMMON = """
work_dir = "work"
env_cfg = dict(dist_cfg=dict(backend="gloo"))
randomness = dict(seed=0)
load = [dict(type="LoadImageFromFile"), dict(type="LoadAnnotations")]
flip = dict(type="RandomFlip", prob=0.5)
workers = dict(num_workers=1, persistent_workers=False)
"""
SEGMENTATION = """
_base_ = "mmseg::fcn/fcn_r50-d8_4xb2-40k_cityscapes-512x1024.py"
norm_cfg = dict(type="BN", requires_grad=True)
data_preprocessor = dict(size=(32, 32))
model = dict(
    data_preprocessor=data_preprocessor,
    pretrained=None,
    backbone=dict(depth=18, norm_cfg=norm_cfg, base_channels=8, stem_channels=8),
    decode_head=dict(in_channels=64, channels=8, num_classes=3, norm_cfg=norm_cfg),
    auxiliary_head=dict(in_channels=32, channels=8, num_classes=3, norm_cfg=norm_cfg),
)
def masks(split, *changes):
    return dict(
        _delete_=True,
        type="BaseSegDataset",
        data_root=f"data/{split}",
        metainfo=dict(classes=("ground", "round", "square"), palette=[[0] * 3, [1] * 3, [2] * 3]),
        data_prefix=dict(img_path="images", seg_map_path="masks"),
        img_suffix=".png",
        seg_map_suffix=".png",
        pipeline=[*load, *changes, dict(type="PackSegInputs")],
    )
train_dataloader = dict(batch_size=2, dataset=masks("train", flip), **workers)
val_dataloader = test_dataloader = dict(dataset=masks("val"), **workers)
train_cfg = dict(max_iters=24, val_interval=8)
default_hooks = dict(checkpoint=dict(interval=8))
param_scheduler = [dict(type="PolyLR", eta_min=1e-4, power=0.9, end=24, by_epoch=False)]
"""
DETECTION = """
_base_ = "mmdet::retinanet/retinanet_r18_fpn_1x_coco.py"
small = dict(base_channels=8, stem_channels=8, init_cfg=None, frozen_stages=-1, norm_eval=False)
model = dict(
    backbone=small,
    neck=dict(in_channels=[8, 16, 32, 64], out_channels=16),
    bbox_head=dict(num_classes=2, in_channels=16, feat_channels=16, stacked_convs=1),
)
load[1].update(with_bbox=True)
load.append(dict(type="Resize", scale=(64, 64)))
def boxes(split, *changes, **options):
    return dict(
        _delete_=True,
        type="CocoDataset",
        metainfo=dict(classes=("round", "square")),
        ann_file=f"data/{split}/boxes.json",
        data_prefix=dict(img=f"data/{split}/images"),
        pipeline=[*load, *changes],
        **options,
    )
keys = ("img_id", "img_path", "ori_shape", "img_shape", "scale_factor")
packed = dict(type="PackDetInputs", meta_keys=keys)
train_dataloader = dict(
    batch_size=2, dataset=boxes("train", flip, dict(type="PackDetInputs")), **workers
)
val_dataloader = test_dataloader = dict(dataset=boxes("val", packed, test_mode=True), **workers)
val_evaluator = test_evaluator = dict(ann_file="data/val/boxes.json")
train_cfg = dict(max_epochs=3)
param_scheduler = [dict(type="LinearLR", start_factor=0.1, by_epoch=False, end=4)]
"""
# Recipe, first and last checkpoint.
RECIPES = {
    "fcn": (SEGMENTATION, "iter_8.pth", "iter_24.pth"),
    "retinanet": (DETECTION, "epoch_1.pth", "epoch_3.pth"),
}


def write_data(folder):
    """Write images with a square each, their masks, and their boxes in COCO's format."""
    chance = np.random.default_rng(0)
    for split, number in (("train", 16), ("val", 4)):
        for name in ("images", "masks"):
            (folder / split / name).mkdir(parents=True)
        images, annotations = [], []
        for index in range(number):
            x, y, kind = (int(one) for one in (*chance.integers(0, 16, 2), 1 + index % 2))
            mask = np.zeros((32, 32), "uint8")
            mask[y : y + 14, x : x + 14] = kind
            picture = chance.integers(0, 80, (32, 32, 3)) + mask[..., None] * 60
            Image.fromarray(picture.astype("uint8")).save(folder / split / f"images/{index}.png")
            Image.fromarray(mask).save(folder / split / f"masks/{index}.png")
            images.append({"id": index, "file_name": f"{index}.png", "height": 32, "width": 32})
            box = {"bbox": [x, y, 14, 14], "area": 196, "iscrowd": 0, "category_id": kind}
            annotations.append({"id": index + 1, "image_id": index, **box})
        categories = [{"id": 1, "name": "round"}, {"id": 2, "name": "square"}]
        content = {"images": images, "annotations": annotations, "categories": categories}
        (folder / split / "boxes.json").write_text(json.dumps(content))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_killed_and_resumes_bit_by_bit(tmp_path, recipe):
    text, first, last = RECIPES[recipe]
    write_data(tmp_path / "data")
    (tmp_path / "recipe.py").write_text(f"{COMMON}{text}")
    work, log = tmp_path / "work", tmp_path / "log"
    killed = start(tmp_path)
    while not (work / first).exists():
        assert killed.poll() is None, log.read_text()
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert not (work / last).exists(), "it was to be killed before its end"
    assert start(tmp_path, "--resume").wait() == 0, log.read_text()
    resumed = torch.load(work / last, weights_only=True)["state_dict"]
    assert start(tmp_path, "--overwrite").wait() == 0, log.read_text()
    whole = torch.load(work / last, weights_only=True)["state_dict"]
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())
