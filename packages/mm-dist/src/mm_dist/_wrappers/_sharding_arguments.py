"""Read the arguments of ``MMFullyShardedDataParallel``."""

import inspect
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from mm_dist._backends import backends_by_device_type
from mm_dist._errors import ConfigError
from mm_dist._info import is_main_process
from mm_dist._suggestion import suggest_name
from mm_dist._warning import warn_caller

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy


class Strategy(NamedTuple):
    """A sharding strategy.

    Attributes:
        name: Our name of it.
        is_freed: Whether gathered parameters are freed between forward and backward.
        is_two_dimensional: Whether there are copies, each spread over shards.
    """

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


def read_strategy(given: Any, *, default: str = "full") -> Strategy:
    """Return the strategy of a name, or of a member of torch's first ``ShardingStrategy``.

    Raises:
        ConfigError: If it is not known.
    """
    if given is None:
        return _STRATEGIES[default]
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
_PRECISION_KEYS = (*_DTYPE_KEYS, "cast_forward_inputs", "full_precision_modules")
# Batch normalisation keeps its statistics in float32, and refuses weights of another dtype.
_DEFAULT_EXEMPT = ("_BatchNorm",)


class Precision(NamedTuple):
    """The policies of the outermost module, of those inside it, and of those left out.

    Attributes:
        root: Of the model.
        inner: Of the modules inside it.
        exempt: Of the modules that ``selectors`` select; ``None`` if there are none.
        selectors: Classes, names of classes, or patterns on names; ``None`` for the default.
    """

    root: "MixedPrecisionPolicy"
    inner: "MixedPrecisionPolicy"
    exempt: "MixedPrecisionPolicy | None" = None
    selectors: Any = None

    def find_exempt(self, candidates: Mapping[str, nn.Module]) -> list[nn.Module]:
        """Return the modules that compute in full precision."""
        if self.exempt is None:
            return []
        if self.selectors is None:
            return find_modules(candidates, _DEFAULT_EXEMPT, "", is_miss_allowed=True)
        argument = "mixed_precision full_precision_modules"
        return find_modules(candidates, self.selectors, argument)


def read_precision(given: Any) -> Precision:
    """Return the policies that ``mixed_precision`` describes.

    Args:
        given: ``None``; a dict; or a ``MixedPrecisionPolicy``, which is used everywhere as it is.

    Raises:
        ConfigError: If a key or a dtype is not known.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415 (slow to import)

    if given is None:
        given = MixedPrecisionPolicy()
    if isinstance(given, MixedPrecisionPolicy):
        return Precision(given, given)
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
        return Precision(root, inner)
    exempt = MixedPrecisionPolicy(torch.float32, output_dtype=param_dtype)
    return Precision(root, inner, exempt, given.get("full_precision_modules"))


def _read_dtype(key: str, given: Any) -> torch.dtype | None:
    if given is None:
        return None
    name = str(given).removeprefix("torch.")
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        known = ("bfloat16", "float16", "float32", "float64")
        raise ConfigError(
            f"mixed_precision {key}={given!r} is no floating-point dtype; use one of "
            f"{', '.join(known)}.{suggest_name(name, known)}"
        )
    return dtype


def read_offload(given: Any, device_type: str) -> "OffloadPolicy":
    """Return the policy that ``cpu_offload`` describes; memory is never pinned for the CPU.

    Raises:
        ConfigError: If it is no boolean, ``dict(pin_memory=...)`` or policy of ``fully_shard``.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy  # noqa: PLC0415 (slow)

    if isinstance(given, OffloadPolicy):
        return given
    if given is None or given is False:
        return OffloadPolicy()
    options = {} if given is True else given
    if not isinstance(options, Mapping) or set(options) - {"pin_memory"}:
        raise ConfigError(
            f"cpu_offload={given!r} cannot be used; give True, False or dict(pin_memory=False)."
        )
    backends = backends_by_device_type()
    if "cpu" not in backends and is_main_process():
        pairs = ",".join(f"{name}:{backend}" for name, backend in backends.items())
        warn_caller(
            f"cpu_offload leaves gradients on the CPU, and the process group ({pairs}) cannot "
            "reach it, so that the gradient norm cannot be computed for clipping. Create the "
            f"group with backend='cpu:gloo,{pairs}'."
        )
    return CPUOffloadPolicy(pin_memory=options.get("pin_memory", True) and device_type != "cpu")


def choose_modules(policy: Any, candidates: Mapping[str, nn.Module]) -> list[nn.Module]:
    """Return the modules that ``auto_wrap_policy`` selects.

    Args:
        policy: ``None``; a class, name or pattern, or several of them; a dict with ``type`` or
            ``min_num_params``; or a function of a module.
        candidates: The modules that may be chosen, by name, in the model's order.

    Raises:
        ConfigError: If it is none of these, or names something that the model has not.
    """
    argument = "auto_wrap_policy"
    if policy is None:
        return []
    if isinstance(policy, Mapping):
        given = dict(policy)
        kind = str(given.pop("type", "")).removesuffix("_auto_wrap_policy")
        if list(given) == ["min_num_params"] and kind in ("", "size_based"):
            return _choose_by_size(candidates, given["min_num_params"])
        if list(given) == ["transformer_layer_cls"] and kind in ("", "transformer"):
            return find_modules(candidates, given["transformer_layer_cls"], argument)
        raise ConfigError(
            f"{argument}={policy!r} cannot be used; a dict is dict(min_num_params=1_000_000) or "
            "dict(type='transformer', transformer_layer_cls=...)."
        )
    if callable(policy) and not isinstance(policy, type):
        if "recurse" in inspect.signature(policy).parameters:
            raise ConfigError(
                f"{argument}={policy!r} is a policy of torch's first FSDP; give a function that "
                "takes a module, class names, or dict(min_num_params=...)."
            )
        return [one for one in candidates.values() if _has_forward(one) and policy(one)]
    return find_modules(candidates, policy, argument)


def _choose_by_size(candidates: Mapping[str, nn.Module], least: Any) -> list[nn.Module]:
    """Choose modules with enough parameters that no chosen module inside them has."""
    if not isinstance(least, (int, float)) or least < 1:
        raise ConfigError(f"min_num_params={least!r} is no positive number.")
    taken: set[nn.Parameter] = set()
    chosen: set[nn.Module] = set()
    for module in reversed(list(candidates.values())):  # inner ones first
        own = [p for p in module.parameters() if p not in taken]
        if _has_forward(module) and sum(p.numel() for p in own) >= least:
            chosen.add(module)
            taken.update(own)
    return [module for module in candidates.values() if module in chosen]


def find_modules(
    candidates: Mapping[str, nn.Module],
    selectors: Any,
    argument: str,
    *,
    is_miss_allowed: bool = False,
) -> list[nn.Module]:
    """Return the modules that at least one selector matches, each once, in the model's order.

    Args:
        candidates: Modules by name.
        selectors: One or several classes (subclasses match), names of classes (a full path too),
            names of modules, or patterns on these as ``blocks.*``, in which ``*`` also matches
            dots.
        argument: Name of the argument they came from, for messages.
        is_miss_allowed: Whether one may match nothing.

    Raises:
        ConfigError: If one is neither name nor class, or matches no module that has a forward.
    """
    given = [selectors] if isinstance(selectors, (str, type)) else selectors
    if not isinstance(given, Iterable) or not given:
        raise ConfigError(
            f"{argument}={selectors!r} cannot be used; give class names or patterns such as "
            "['TransformerBlock', 'backbone.stages.*']."
        )
    chosen: set[str] = set()
    for selector in given:
        if not isinstance(selector, (str, type)):
            raise ConfigError(
                f"{argument} holds {selector!r}; give classes, names of classes, or patterns on "
                "module names."
            )
        names = {name for name, module in candidates.items() if _matches(selector, name, module)}
        callable_names = {name for name in names if _has_forward(candidates[name])}
        if not callable_names and not is_miss_allowed:
            _raise_miss(candidates, selector, names, argument)
        chosen |= callable_names
    return [module for name, module in candidates.items() if name in chosen]


def _has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a ``ModuleList`` cannot."""
    return type(module).forward is not nn.Module.forward or "forward" in module.__dict__


def _matches(selector: Any, name: str, module: nn.Module) -> bool:
    if isinstance(selector, type):
        return isinstance(module, selector)
    classes = [kind for kind in type(module).__mro__ if kind not in (nn.Module, object)]
    names = {n for c in classes for n in (c.__name__, f"{c.__module__}.{c.__qualname__}")}
    return selector in names or fnmatchcase(name, selector)


def _raise_miss(
    candidates: Mapping[str, nn.Module], selector: Any, containers: set[str], argument: str
) -> None:
    if containers:
        name = min(containers)
        raise ConfigError(
            f"{argument}: {selector!r} names {name!r}, a {type(candidates[name]).__name__}, which "
            f"has no forward and cannot be gathered by itself; name what it holds: '{name}.*'."
        )
    classes = sorted({type(module).__name__ for module in candidates.values()})
    wanted = selector.__name__ if isinstance(selector, type) else str(selector)
    raise ConfigError(
        f"{argument}: {selector!r} matches no module; classes found: "
        f"{', '.join(classes) or 'none'}.{suggest_name(wanted, [*classes, *candidates])} Give a "
        "class, the name of a class, or a pattern on module names such as 'backbone.layers.*'."
    )


def find_ignored(root: nn.Module, modules: Any, parameters: Any) -> set[nn.Parameter]:
    """Return the parameters of ``root`` that are not sharded.

    Those of a ``data_preprocessor`` are among them: it is called outside the model's forward, when
    the model's parameters are not gathered.

    Args:
        root: The model.
        modules: ``None``, or modules and patterns on names of modules.
        parameters: ``None``, or parameters and patterns on names of parameters.

    Raises:
        ConfigError: If a pattern matches nothing, an item is of another kind, or the
            preprocessor is to be trained.
    """
    found: set[nn.Parameter] = set()
    named_modules = dict(root.named_modules())
    for one in _select(modules, nn.Module, named_modules, "ignored_modules"):
        found.update(one.parameters())
    named_parameters = dict(root.named_parameters(remove_duplicate=False))
    found.update(_select(parameters, nn.Parameter, named_parameters, "ignored_parameters"))
    trained = [name for name, one in named_parameters.items() if one in found and one.requires_grad]
    if trained and is_main_process():
        warn_caller(
            f"Ignored parameters stay whole on every rank, and nothing averages their gradients: "
            f"{', '.join(trained[:5])}{' ...' if len(trained) > 5 else ''}. Freeze them "
            "(requires_grad_(False)), or average their gradients before each step, and give them "
            "an optimizer of their own: torch neither clips nor unscales both kinds together."
        )
    preprocessor = getattr(root, "data_preprocessor", None)
    own = list(preprocessor.parameters()) if isinstance(preprocessor, nn.Module) else []
    if any(parameter.requires_grad for parameter in own):
        raise ConfigError(
            f"The data_preprocessor of {type(root).__name__} has parameters to train. It is called "
            "outside the model's forward, where sharded parameters cannot be used; freeze it "
            "(requires_grad_(False)), or call it within forward under another name."
        )
    return found.union(own)


def _select(given: Any, kind: type[Any], named: Mapping[str, Any], argument: str) -> list[Any]:
    found: list[Any] = []
    for item in [given] if isinstance(given, (str, kind)) else given or ():
        matches = [item] if isinstance(item, kind) else []
        if isinstance(item, str):
            matches = [one for name, one in named.items() if name and fnmatchcase(name, item)]
        if not matches:
            raise ConfigError(
                f"{argument}: {item!r} matches none of the model's names; give {kind.__name__} "
                f"objects, names, or patterns.{suggest_name(str(item), named)}"
            )
        found += matches
    return found
