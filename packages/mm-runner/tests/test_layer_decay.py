"""Rates by layer under the names and with the rates of mmdet and mmseg."""

import pytest
import torch
from test_paramwise import settings
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv2d(2, 2, 3, groups=2)
        self.norm = nn.LayerNorm(2)
        self.pointwise = nn.Linear(2, 2)


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


@pytest.mark.parametrize("kind", ["layer_wise", "layer_wise_vit"])
def test_layers_of_a_transformer_are_those_of_mmseg(kind):
    modules = by_module(exponents(Detector(VisionTransformer(4)), num_layers=4, decay_type=kind))
    assert [modules[f"backbone.layers.{index}"] for index in range(4)] == [4, 3, 2, 1]
    assert modules["backbone.cls_token"] == modules["backbone.patch_embed.weight"] == 5
    assert modules["backbone.ln1.weight"] == modules["heads.0.0"] == 0


def test_a_backbone_without_blocks_is_no_obstacle():
    model = Detector(nn.Linear(2, 2))
    modules = by_module(exponents(model), 2)
    assert [modules[f"heads.{index}"] for index in range(3)] == [3, 2, 1]
