"""Read the arguments of ``MMFullyShardedDataParallel``."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mm_dist._errors import ConfigError
from mm_dist._message import suggest_name

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy


class Strategy(NamedTuple):
    """A sharding strategy."""

    name: str
    is_freed: bool
    is_two_dimensional: bool = False


_STRATEGIES = {
    "full": Strategy("full", is_freed=True),
    "grad-op": Strategy("grad-op", is_freed=False),
    "hybrid": Strategy("hybrid", is_freed=True, is_two_dimensional=True),
    "hybrid-grad-op": Strategy("hybrid-grad-op", is_freed=False, is_two_dimensional=True),
    "no-shard": Strategy("no-shard", is_freed=False, is_two_dimensional=True),
}
# The members of torch's first ShardingStrategy, in lower case and with dashes.
_FORMER_NAMES = {
    "full-shard": "full",
    "shard-grad-op": "grad-op",
    "hybrid-shard": "hybrid",
    "hybrid-shard-zero2": "hybrid-grad-op",
}


def read_strategy(given: Any) -> Strategy:
    """Return the strategy of a name, or of a member of torch's first ``ShardingStrategy``."""
    # A member of the enum counts by its name, so that torch.distributed.fsdp is not needed here.
    text = str(getattr(given, "name", given))
    name = text.lower().replace("_", "-").rpartition(".")[2].strip("-")
    name = _FORMER_NAMES.get(name, name)
    if name not in _STRATEGIES:
        raise ConfigError(
            f"sharding_strategy={given!r} is not known; there are: {', '.join(_STRATEGIES)}, and "
            "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, NO_SHARD."
            f"{suggest_name(name, _STRATEGIES)}"
        )
    return _STRATEGIES[name]


_DTYPE_KEYS = ("param_dtype", "reduce_dtype", "output_dtype")
_PRECISION_KEYS = (*_DTYPE_KEYS, "cast_forward_inputs")


def read_precision(
    given: Any,
) -> "tuple[MixedPrecisionPolicy, MixedPrecisionPolicy, MixedPrecisionPolicy | None]":
    """Return the policies of the outermost module, inner ones, and batch normalizations."""
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415 (slow to import)

    if given is None:
        given = MixedPrecisionPolicy()
    if isinstance(given, MixedPrecisionPolicy):
        return given, given, None
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"mixed_precision={given!r} cannot be used; give a dict such as "
            "dict(param_dtype='bfloat16', reduce_dtype='float32'), or None."
        )
    for key in given:
        if key not in _PRECISION_KEYS:
            raise ConfigError(
                f"mixed_precision has the key {key!r}; there are: {', '.join(_PRECISION_KEYS)}."
                f"{suggest_name(str(key), _PRECISION_KEYS)}"
            )
    param_dtype, reduce_dtype, output_dtype = (_read_dtype(k, given.get(k)) for k in _DTYPE_KEYS)
    common: dict[str, Any] = {
        "param_dtype": param_dtype,
        # torch 2.15 reduces in the original dtype where older ones use param_dtype: say it always.
        "reduce_dtype": reduce_dtype or param_dtype,
        "cast_forward_inputs": given.get("cast_forward_inputs", True),
    }
    root = MixedPrecisionPolicy(**common, output_dtype=output_dtype)
    inner = MixedPrecisionPolicy(**common)
    if param_dtype is None:
        return root, inner, None
    return root, inner, MixedPrecisionPolicy(torch.float32, output_dtype=param_dtype)


def _read_dtype(key: str, given: Any) -> torch.dtype | None:
    if given is None:
        return None
    dtype = getattr(torch, str(given).removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(
            f"mixed_precision {key}={given!r} is no floating-point dtype; use one of bfloat16, "
            "float16, float32, float64."
        )
    return dtype


def read_offload(given: Any, device_type: str) -> "OffloadPolicy":
    """Return the policy that ``cpu_offload`` describes; memory is never pinned for the CPU."""
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy  # noqa: PLC0415 (slow)

    if isinstance(given, OffloadPolicy):
        return given
    if given not in (None, True, False):
        raise ConfigError(f"cpu_offload={given!r} cannot be used; give True or False.")
    return CPUOffloadPolicy(pin_memory=device_type != "cpu") if given else OffloadPolicy()


def choose_modules(policy: Any, candidates: Mapping[str, nn.Module]) -> list[nn.Module]:
    """Return the modules that ``auto_wrap_policy`` selects."""
    if policy is None:
        return []
    if isinstance(policy, Mapping):
        given = dict(policy)
        kind = str(given.pop("type", "")).removesuffix("_auto_wrap_policy")
        if list(given) == ["min_num_params"] and kind in ("", "size_based"):
            return _choose_by_size(candidates, given["min_num_params"])
        if list(given) == ["transformer_layer_cls"] and kind in ("", "transformer"):
            return _find_modules(candidates, given["transformer_layer_cls"])
        raise ConfigError(
            f"auto_wrap_policy={policy!r} cannot be used; a dict is dict(min_num_params=1_000_000) "
            "or dict(type='transformer', transformer_layer_cls=...)."
        )
    if callable(policy) and not isinstance(policy, type):
        return [one for one in candidates.values() if _has_forward(one) and policy(one)]
    return _find_modules(candidates, policy)


def _choose_by_size(candidates: Mapping[str, nn.Module], least: Any) -> list[nn.Module]:
    """Choose modules with enough parameters that no chosen module inside them has."""
    if not isinstance(least, (int, float)) or least < 1:
        raise ConfigError(f"min_num_params={least!r} is no positive number.")
    taken: set[nn.Parameter] = set()
    chosen: list[nn.Module] = []
    for module in reversed(list(candidates.values())):  # inner ones first
        own = [p for p in module.parameters() if p not in taken]
        if _has_forward(module) and sum(p.numel() for p in own) >= least:
            chosen.append(module)
            taken.update(own)
    return chosen


def _find_modules(candidates: Mapping[str, nn.Module], selectors: Any) -> list[nn.Module]:
    """Return the modules that a class, its name, or a pattern on names of modules matches."""
    given = [selectors] if isinstance(selectors, (str, type)) else selectors
    is_list = isinstance(given, Iterable) and all(isinstance(one, (str, type)) for one in given)
    if not is_list or not given:
        raise ConfigError(
            f"auto_wrap_policy={selectors!r} cannot be used; give classes, class names or patterns "
            "such as ['TransformerBlock', 'backbone.stages.*']."
        )
    chosen: list[nn.Module] = []
    for selector in given:
        found = [m for name, m in candidates.items() if _matches(selector, name, m)]
        if not any(map(_has_forward, found)):
            classes = sorted({type(module).__name__ for module in candidates.values()})
            wanted = selector.__name__ if isinstance(selector, type) else selector
            raise ConfigError(
                f"auto_wrap_policy: {selector!r} matches no module with a forward; classes found: "
                f"{', '.join(classes) or 'none'}.{suggest_name(wanted, [*classes, *candidates])} "
                "Give a class, its name, or a pattern on module names such as 'backbone.layers.*'."
            )
        chosen += filter(_has_forward, found)
    return chosen


def _has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a ``ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _matches(selector: Any, name: str, module: nn.Module) -> bool:
    if isinstance(selector, type):
        return isinstance(module, selector)
    classes = [kind for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    names = {n for c in classes for n in (c.__name__, f"{c.__module__}.{c.__qualname__}")}
    return selector in names or fnmatchcase(name, selector)


def find_ignored(root: nn.Module, given: Any) -> set[nn.Parameter]:
    """Return the parameters of ``root`` that are not sharded."""
    # It is called outside the model's forward, when no parameters are gathered.
    modules = [getattr(root, "data_preprocessor", None)]
    named = dict(root.named_modules())
    for item in [given] if isinstance(given, (str, nn.Module)) else given or ():
        is_module = isinstance(item, nn.Module)
        matches = [one for name, one in named.items() if name and fnmatchcase(name, str(item))]
        if not is_module and not matches:
            raise ConfigError(
                f"ignored_modules: {item!r} matches none of the model's names; give modules, "
                f"names, or patterns.{suggest_name(str(item), named)}"
            )
        modules += [item] if is_module else matches
    found = {p for one in modules if isinstance(one, nn.Module) for p in one.parameters()}
    trained = [name for name, p in root.named_parameters() if p in found and p.requires_grad]
    if trained:
        raise ConfigError(
            f"{', '.join(trained[:5])}{' ...' if len(trained) > 5 else ''}: parameters of "
            "ignored_modules and of the data_preprocessor stay whole on every rank, and nothing "
            "averages their gradients. Freeze them (requires_grad_(False))."
        )
    return found
