"""Selection of the modules to compile one by one: repeated blocks, or modules by name."""

from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ._errors import ConfigError
from ._torch_private import is_made_by_torch_compile
from ._words import suggest

NamedModule = tuple[str, nn.Module]
# What compiled code of a module depends on: its class, submodules, shapes and types.
Signature = tuple[object, ...]

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
# With fewer blocks of a kind, on average, compiling the whole model takes as long, and its steps
# are faster: nothing is fused across blocks.
_LEAST_REPEATS = 2


def find_regions(model: nn.Module, regions: str | Sequence[str]) -> list[NamedModule]:
    """Find the modules to compile one by one; none is inside another."""
    if regions == "auto":
        blocks = list(_find_blocks(model))
        num_kinds = len({signature_of(block) for _, block in blocks})
        return blocks if len(blocks) >= _LEAST_REPEATS * num_kinds else []
    return _find_matches(model, regions)


def signature_of(module: nn.Module) -> Signature:
    """Return what modules must have in common to share compiled code.

    Where values that their code reads differ, dynamo compiles once more.
    """
    parts = tuple(
        (name, type(part), tuple(_tensors(part))) for name, part in module.named_modules()
    )
    return (type(module), parts)


def _tensors(module: nn.Module) -> Iterator[tuple[object, ...]]:
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(recurse=False):
            shape = None if is_lazy(tensor) else tuple(tensor.shape)
            yield (name, shape, tensor.dtype, tensor.requires_grad)


def _find_blocks(model: nn.Module) -> Iterator[NamedModule]:
    candidates = [
        child
        for module in model.modules()
        if isinstance(module, _CONTAINERS)
        for child in module.children()
        if _is_block(child)
    ]
    repeated = Counter(map(signature_of, {id(child): child for child in candidates}.values()))
    signatures = {signature for signature, number in repeated.items() if number > 1}
    # Blocks of other sizes count if their class repeats: the first of a stage, for example.
    classes = {signature[0] for signature in signatures} - set(_CONTAINERS)
    blocks = {
        id(child)
        for child in candidates
        if type(child) in classes or signature_of(child) in signatures
    }
    return _outermost("", model, blocks, set())


def _is_block(module: nn.Module) -> bool:
    # A single layer is not worth a graph.
    layers = [
        part for part in module.modules() if next(part.parameters(recurse=False), None) is not None
    ]
    return _is_compilable(module) and not is_made_by_torch_compile(module) and len(layers) > 1


def _is_compilable(module: nn.Module) -> bool:
    return has_forward(module) and not isinstance(module, torch.jit.ScriptModule)


def has_forward(module: nn.Module) -> bool:
    """Whether ``module`` can be called; a ``ModuleList``, for example, cannot."""
    has_instance_method = "forward" in vars(module) or isinstance(module, torch.jit.ScriptModule)
    return has_instance_method or type(module).forward is not nn.Module.forward


def _outermost(
    name: str, module: nn.Module, chosen: set[int], seen: set[int]
) -> Iterator[NamedModule]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if id(module) in chosen:
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _outermost(f"{name}.{child_name}".lstrip("."), child, chosen, seen)


def _find_matches(model: nn.Module, patterns: Sequence[str]) -> list[NamedModule]:
    modules = {name: module for name, module in model.named_modules() if name}
    chosen: set[int] = set()
    for pattern in patterns:
        names = [name for name in modules if fnmatchcase(name, pattern)]
        if not names:
            raise ConfigError(
                f"compile.regions has {pattern!r}, which names no module of "
                f"{type(model).__name__}. {suggest(pattern, list(modules)[:40])}"
            )
        matches = [name for name in names if _is_compilable(modules[name])]
        if not matches:
            raise ConfigError(
                f"compile.regions has {pattern!r}, but {names[0]!r} is a "
                f"{type(modules[names[0]]).__name__}, which has no forward to compile. Write "
                f"{pattern + '.*'!r} for what it holds."
            )
        chosen.update(id(modules[name]) for name in matches)
    return list(_outermost("", model, chosen, set()))
