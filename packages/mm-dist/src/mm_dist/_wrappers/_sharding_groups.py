"""Divide a model into groups of parameters, so that a shared one belongs to one group."""

import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import nn

from mm_dist._info import is_main_process


@dataclass
class Group:
    """Parameters that are gathered and freed together.

    Attributes:
        heads: The modules whose call gathers them.
        members: Those, and everything inside them that no other group has; inner ones first.
        is_exempt: Whether mixed precision leaves the group alone.
    """

    heads: list[nn.Module]
    members: list[nn.Module] = field(default_factory=list)
    is_exempt: bool = False


def groupable_modules(
    root: nn.Module, outside: nn.Module | None, ignored: set[nn.Parameter]
) -> dict[str, nn.Module]:
    """Return the modules that may head a group, or hold ones that do, by name.

    Args:
        root: The model, itself not in the result.
        outside: A part of it that is called outside its forward, and so heads no group.
        ignored: Parameters that are not sharded; a module without others heads no group.
    """
    hidden: set[nn.Module] = set() if outside is None else set(outside.modules())
    for module in root.modules():
        if isinstance(module, nn.MultiheadAttention):
            # It reads the weights of what is inside it without calling it.
            hidden |= set(module.modules()) - {module}
    return {
        name: module
        for name, module in root.named_modules()
        if module is not root
        and module not in hidden
        and any(parameter not in ignored for parameter in module.parameters())
    }


def keep_ties_together(
    root: nn.Module, heads: Iterable[nn.Module], ignored: set[nn.Parameter]
) -> set[nn.Module]:
    """Return the heads under which no parameter would belong to two groups.

    A parameter that modules of different groups share goes, with these groups, to the smallest
    group around them. A warning names it.
    """
    kept = set(heads)
    places = _places_of_parameters(root, ignored)
    reasons: dict[str, str] = {}
    is_changed = True
    while is_changed:
        is_changed = False
        for named_chains in places:
            chains = [chain for _, chain in named_chains]
            innermost = [next((m for m in reversed(c) if m in kept), root) for c in chains]
            if all(head is innermost[0] for head in innermost):
                continue
            split = {h for h in innermost if not all(h in c for c in chains)} - {root}
            kept -= split
            is_changed = True
            first, second = named_chains[0][0], named_chains[1][0]
            reasons.update({type(head).__name__: f"{first} and {second}" for head in split})
    if reasons and is_main_process():
        listed = "; ".join(f"{name} ({tie})" for name, tie in reasons.items())
        warnings.warn(
            f"Modules that share parameters cannot be sharded separately: {listed}. They join the "
            "group around them. Leave them out of auto_wrap_policy.",
            stacklevel=2,
        )
    return kept


def _places_of_parameters(
    root: nn.Module, ignored: set[nn.Parameter]
) -> list[list[tuple[str, list[nn.Module]]]]:
    """Return, for each shared parameter, its names with the modules around it, outermost first."""
    places: defaultdict[nn.Parameter, list[tuple[str, list[nn.Module]]]] = defaultdict(list)
    modules = dict(root.named_modules(remove_duplicate=False))
    for name, module in modules.items():
        around = [modules[outer] for outer in _outer_names(name)]
        for own_name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter not in ignored:
                full_name = f"{name}.{own_name}" if name else own_name
                places[parameter].append((full_name, around))
    return [found for found in places.values() if len(found) > 1]


def _outer_names(name: str) -> list[str]:
    """Return the names of a module and of those around it, outermost first: ``''``, ``'a'``, ..."""
    parts = name.split(".") if name else []
    return [".".join(parts[:length]) for length in range(len(parts) + 1)]


def divide(
    root: nn.Module, heads: set[nn.Module], exempt: set[nn.Module], *, is_joint: bool
) -> list[Group]:
    """Return the groups of a model: inner ones first, else in the model's order, the root last.

    Args:
        root: The model.
        heads: Modules that head a group of their own.
        exempt: Modules outside mixed precision.
        is_joint: Whether the exempt modules of one group form one second group, or one each.
    """
    groups: list[Group] = []
    seen: set[nn.Module] = set()

    def visit(module: nn.Module, around: Group, exempt_around: Group) -> None:
        if module in seen:
            return
        seen.add(module)
        is_head = module is root or module in heads
        if is_head:
            around, exempt_around = Group([module]), Group([], is_exempt=True)
        elif module in exempt:
            around = exempt_around if is_joint else Group([], is_exempt=True)
            around.heads.append(module)
        for child in module.children():
            visit(child, around, exempt_around)
        around.members.append(module)
        if is_head:
            groups.extend(group for group in (exempt_around, around) if group.heads)
        elif module in exempt and not is_joint:
            groups.append(around)

    visit(root, Group([]), Group([]))
    return groups
