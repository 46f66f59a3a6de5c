"""Depth of parameters in a model, counted in repeated blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from torch import nn

from mm_runner.model import unwrap_model

__all__ = ["depths_of", "find_blocks", "find_leads", "modules_of"]

_NUMBERED = re.compile(r"(.*?)\d+$")
# A member of a list of stages is cut into blocks if these hold that much of its parameters.
_MAIN_PART = 0.5

_Named = list[tuple[str, nn.Module]]


def find_blocks(model: nn.Module, *, by_stage: bool = False) -> list[str]:
    """Return the names of the repeated blocks that hold most of a model's parameters, in order.

    Blocks are neighbours of one class: the members of a ``ModuleList``, or ``layer1``, ``layer2``
    and so on. Stages that consist of blocks themselves are cut into these.

    Args:
        model: Wrapped or not.
        by_stage: Do not cut stages.
    """
    groups = [group for name, module in modules_of(model) for group in _repeated(name, module)]
    composed = [group for group in groups if _is_composed(group)] or groups
    blocks = max(composed, key=_size, default=[])
    if not by_stage:
        blocks = [part for name, block in blocks for part in _cut(name, block)]
    return [name for name, _ in blocks]


def find_leads(model: nn.Module, blocks: list[str]) -> dict[str, int]:
    """Return modules that lead to a stage from a list beside it, with the stage's first block.

    ConvNeXt is built so: ``downsample_layers.1`` comes between ``stages.0`` and ``stages.1``, and
    before all of these in the order of the model.

    Args:
        model: Wrapped or not.
        blocks: Names of the blocks that the stages were cut into, in order.

    Returns:
        By the name of each such module, the number of the block that it leads to, from 1.
    """
    stages = find_blocks(model, by_stage=True)
    owner, _, kind = stages[0].rpartition(".")[0].rpartition(".") if stages else ("", "", "")
    found = dict(modules_of(model))
    if not kind:
        return {}
    leads = {}
    for own, sibling in found[owner].named_children():
        if own == kind:
            break  # what comes after the stages leads to none
        members = [name for name, _ in sibling.named_children()]
        if members != [stage.rpartition(".")[2] for stage in stages]:
            continue
        prefix = f"{owner}.{own}" if owner else own
        for member, stage in list(zip(members, stages, strict=True))[1:]:
            inside = (f"{name}.".startswith(f"{stage}.") for name in blocks)
            leads[f"{prefix}.{member}"] = list(inside).index(True) + 1
    return leads


def depths_of(
    names: Iterable[str], blocks: list[str], leads: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the depth of each parameter.

    0 is before the first block, then come the blocks from 1 on, and one more for what follows the
    last. What lies between two blocks counts with the one that it leads to.

    Args:
        names: Of all parameters, in the order of the model.
        blocks: Names of the blocks, in order.
        leads: Modules that lie elsewhere, and which block each leads to.
    """
    ordered = list(names)
    numbers = [_number(name, blocks) for name in ordered]
    inside = [place for place, number in enumerate(numbers) if number]
    depths: dict[str, int] = {}
    following = len(blocks) + 1
    for place in range(len(ordered) - 1, -1, -1):
        following = numbers[place] or following
        is_before = not inside or place < inside[0]
        depths[ordered[place]] = 0 if is_before else following
    for module, number in (leads or {}).items():
        depths.update((name, number) for name in ordered if name.startswith(f"{module}."))
    return depths


def modules_of(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield every module with its name, both without wrappers."""
    module = unwrap_model(module)
    yield name, module
    for own, child in module.named_children():
        yield from modules_of(child, f"{name}.{own}" if name else own)


def _number(name: str, blocks: list[str]) -> int:
    return next((i for i, block in enumerate(blocks, 1) if name.startswith(f"{block}.")), 0)


def _repeated(name: str, module: nn.Module) -> list[_Named]:
    """Return the groups of numbered children of one class."""
    groups: dict[tuple[str, type], _Named] = {}
    for own, child in module.named_children():
        numbered = _NUMBERED.match(own)
        if numbered and any(True for _ in child.parameters()):
            group = groups.setdefault((numbered[1], type(unwrap_model(child))), [])
            group.append((f"{name}.{own}" if name else own, child))
    return [group for group in groups.values() if len(group) > 1]


def _is_composed(group: _Named) -> bool:
    return all(any(True for _ in unwrap_model(block).children()) for _, block in group)


def _size(group: _Named) -> int:
    return sum(parameter.numel() for _, block in group for parameter in block.parameters())


def _cut(name: str, block: nn.Module) -> _Named:
    groups = [group for own, module in modules_of(block, name) for group in _repeated(own, module)]
    groups = [group for group in groups if _is_composed(group)]
    largest = max(groups, key=_size, default=[])
    if not largest or _size(largest) < _MAIN_PART * _size([(name, block)]):
        return [(name, block)]
    return largest
