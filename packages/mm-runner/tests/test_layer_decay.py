"""Rates by layer under the names and with the results of mmdet and mmseg."""

import pytest
import torch
from test_paramwise import SGD, settings
from torch import nn

from mm_runner import ConfigError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(2, 2, 3, groups=2)
        self.norm = nn.LayerNorm(2)
        self.pointwise = nn.Linear(2, 2)


class ConvNeXt(nn.Module):
    """Built as theirs is: what leads to a stage lies in a list before all stages."""

    def __init__(self, depths):
        super().__init__()
        self.downsample_layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(2), nn.Conv2d(2, 2, 2)) for _ in depths
        )
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block() for _ in range(depth))) for depth in depths
        )
        for index in range(len(depths)):
            self.add_module(f"norm{index}", nn.LayerNorm(2))


class VisionTransformer(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.cls_token = nn.Parameter(torch.ones(1, 1, 2))
        self.patch_embed = nn.Conv2d(2, 2, 2)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.ln1 = nn.LayerNorm(2)


class Detector(nn.Module):
    """Its heads are repeated too, and larger than the backbone."""

    def __init__(self, backbone):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.backbone = backbone
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(90, 90), nn.Sequential()) for _ in "123")


def exponents(model, name="LearningRateDecayOptimizerConstructor", **paramwise):
    """How often the rate is halved, by the first parts of a parameter's name."""
    found = settings(model, {"decay_rate": 0.5, **paramwise}, constructor=name)
    return {name: round(-torch.log2(torch.tensor(lr)).item()) for name, (lr, _) in found.items()}


def by_module(found, depth=3):
    grouped = {}
    for name, exponent in found.items():
        grouped.setdefault(".".join(name.split(".")[:depth]), set()).add(exponent)
    return {name: found.pop() if len(found) == 1 else found for name, found in grouped.items()}


@pytest.mark.parametrize(("depths", "num_layers"), [((3, 3, 9, 3), 6), ((3, 3, 27, 3), 12)])
def test_layers_of_a_convnext_are_those_of_mmdet(depths, num_layers):
    model = Detector(ConvNeXt(depths))
    found = exponents(model, num_layers=num_layers)
    blocks = by_module(found, 4)
    stages = "backbone.stages"
    last = [num_layers + 1 - (3 + block // 3) for block in range(depths[2])]
    assert [blocks[f"{stages}.2.{block}"] for block in range(depths[2])] == last
    modules = by_module({name: one for name, one in found.items() if "stages.2" not in name})
    assert modules == {
        "embedding.weight": 0,
        "backbone.downsample_layers.0": num_layers + 1,
        "backbone.stages.0": num_layers,
        "backbone.downsample_layers.1": num_layers - 1,
        "backbone.stages.1": num_layers - 1,
        "backbone.downsample_layers.2": num_layers - 2,
        "backbone.downsample_layers.3": 1,
        "backbone.stages.3": 1,
        **{f"backbone.norm{index}.{kind}": 0 for index in range(4) for kind in ("weight", "bias")},
        **{f"heads.{index}.0": 0 for index in range(3)},
    }


@pytest.mark.parametrize("tells", [False, True], ids=["silent", "tells-layers"])
def test_stages_of_a_convnext_are_those_of_mmdet(tells):
    model = Detector(ConvNeXt((3, 3, 9, 3)))
    if tells:  # mmpretrain's says which layer a parameter is in; stages were asked for
        model.backbone.get_layer_depth = lambda *_: (1, 3)
    modules = by_module(exponents(model, num_layers=12, decay_type="stage_wise"))
    assert [modules[f"backbone.stages.{index}"] for index in range(4)] == [12, 11, 10, 9]
    assert [modules[f"backbone.downsample_layers.{index}"] for index in range(4)] == [13] * 4
    assert modules["backbone.norm3.weight"] == modules["heads.0.0"] == 0


@pytest.mark.parametrize("kind", ["layer_wise", "layer_wise_vit"])
def test_layers_of_a_transformer_are_those_of_mmseg(kind):
    modules = by_module(exponents(Detector(VisionTransformer(4)), num_layers=4, decay_type=kind))
    assert [modules[f"backbone.layers.{index}"] for index in range(4)] == [4, 3, 2, 1]
    assert modules["backbone.cls_token"] == modules["backbone.patch_embed.weight"] == 5
    assert modules["backbone.ln1.weight"] == modules["heads.0.0"] == 0


def test_mmsegs_older_name_takes_its_older_key():
    name, rate = "LayerDecayOptimizerConstructor", {"layer_decay_rate": 0.5, "num_layers": 4}
    found = settings(Detector(VisionTransformer(4)), rate, constructor=name)
    assert found["backbone.layers.3.pointwise.weight"] == (0.5, 0.5)
    assert found["backbone.layers.3.pointwise.bias"] == (0.5, 0.0)
    assert found["backbone.cls_token"] == (1 / 32, 0.5)
    with pytest.raises(ConfigError, match="one of decay_rate and layer_decay_rate is needed"):
        settings(Detector(VisionTransformer(4)), {"num_layers": 4}, SGD, constructor=name)


def test_a_backbone_without_blocks_is_no_obstacle():
    model = Detector(nn.Linear(2, 2))
    modules = by_module(exponents(model), 2)
    assert [modules[f"heads.{index}"] for index in range(3)] == [3, 2, 1]
