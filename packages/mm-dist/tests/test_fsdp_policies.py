"""Which modules auto_wrap_policy of MMFullyShardedDataParallel makes groups of."""

import pytest
from fsdp_models import Block, Net, group_names, needs_fully_shard
from torch import nn

from mm_dist import ConfigError, MMFullyShardedDataParallel

pytestmark = needs_fully_shard
BLOCKS = ["", "blocks.0", "blocks.1", "blocks.2"]
LINEAR = [f"blocks.{i}.{part}" for i in range(3) for part in ("up", "down")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (None, [""]),
        ("Block", BLOCKS),
        (["Block", nn.Linear], sorted([*BLOCKS, *LINEAR, "stem", "head"])),
        ({Block}, BLOCKS),
        ("fsdp_models.Block", BLOCKS),
        ("blocks.[01]", BLOCKS[:3]),
        (("blocks.*.up", "head"), ["", "blocks.0.up", "blocks.1.up", "blocks.2.up", "head"]),
        ({"min_num_params": 100}, BLOCKS),
        ({"type": "size_based_auto_wrap_policy", "min_num_params": 1e9}, [""]),
        ({"type": "transformer", "transformer_layer_cls": ["Block"]}, BLOCKS),
        ({"type": "transformer_auto_wrap_policy", "transformer_layer_cls": {Block}}, BLOCKS),
        (lambda module: isinstance(module, nn.ModuleList | Block), BLOCKS),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_policy_makes_groups_of(policy, expected):
    model = Net()
    MMFullyShardedDataParallel(model, auto_wrap_policy=policy)
    assert sorted(group_names(model)) == expected


@pytest.mark.usefixtures("group_of_one")
def test_what_is_not_called_heads_no_group():
    # Attention reads the weights of its output layer without calling it.
    model = nn.TransformerEncoderLayer(4, 2, 8)
    MMFullyShardedDataParallel(model, auto_wrap_policy=lambda module: True)  # noqa: ARG005
    assert group_names(model) == ["", "self_attn", "linear1", "linear2", "norm1", "norm2"]


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (
            "Blok",
            r"'Blok' matches no module .*; classes found: Block, Linear, ModuleList\. Did you",
        ),
        (nn.Conv2d, "'torch.nn.modules.conv.Conv2d'> matches no module"),
        (["Block", "bloks.*"], r"'bloks\.\*' matches no module"),
        ("blocks", r"'blocks' matches no module with a forward"),
        (["Block", 3], r"\['Block', 3\] cannot be used"),
        ([], r"auto_wrap_policy=\[\] cannot be used"),
        (3.5, r"auto_wrap_policy=3\.5 cannot be used"),
        ({"min_num_params": 0}, "min_num_params=0 is no positive number"),
        ({"min_num_params": 1, "leaves": 2}, "a dict is dict"),
        ({"type": "transfomer"}, "auto_wrap_policy=.* a dict is dict"),
        ({"type": "transformer", "classes": []}, "or dict.type='transformer'"),
    ],
)
@pytest.mark.usefixtures("group_of_one")
def test_policy_errors_say_what_there_is(policy, message):
    with pytest.raises(ConfigError, match=message):
        MMFullyShardedDataParallel(Net(), auto_wrap_policy=policy)
