"""Content of a checkpoint: allowed values, names and loading of weights, random numbers."""

from __future__ import annotations

import random
import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mm_runner._untrusted import CONTENT_ERRORS
from mm_runner.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# Incremented when older versions of mm-runner cannot read new files.
FORMAT_VERSION = 1

_MAX_PROBLEMS = 20
_MISSING, _UNEXPECTED = "missing: ", "unexpected: "
# Layers of one kind, which a list of modules holds.
_NUMBER_IN_NAME = re.compile(r"\.\d+\.")

# No bytes and no complex: the safe loaders of some torch versions refuse them.
_PRIMITIVES = (type(None), bool, int, float, str)

# Of a state_dict, where torch keeps the versions of modules.
_METADATA = "_metadata"
# Prefixes of wrappers, in any order and number.
_LEADING_WRAPPERS = re.compile(r"^(?:(?:_orig_mod|module)\.)+")


def clean_name(name: str) -> str:
    """Return a parameter's name free of ``module.`` and ``_orig_mod.``.

    ``_orig_mod.`` is removed wherever it stands. ``module.`` only at the front: inside a name it
    may be the model's own attribute.

    Example:
        >>> clean_name("module._orig_mod.a.weight"), clean_name("b._orig_mod.bias")
        ('a.weight', 'b.bias')
    """
    return _LEADING_WRAPPERS.sub("", name).replace("_orig_mod.", "")


def saved_names(model: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights of a bare model by their names in a checkpoint.

    A model that only holds the user's module has its place there as ``weights_prefix``.
    """
    prefix = _prefix_of(model)
    return renamed(weights, lambda name: name.removeprefix(prefix)) if prefix else weights


def own_names(model: nn.Module, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return weights of a checkpoint by the names that ``model`` has for them, free of wrappers."""
    prefix = _prefix_of(model)
    if not prefix or not isinstance(weights, Mapping):
        return weights
    own = model.state_dict()
    known = {clean_name(name) for name in (*own, *(f"{name}." for name in _metadata_of(own)))}
    if all(name in known for name in weights):
        return weights

    def own_name(name: str) -> str:
        inner = f"{prefix}{clean_name(name)}"
        return inner if inner in known else name

    return renamed(weights, own_name)


def _prefix_of(model: Any) -> str:
    while not hasattr(model, "weights_prefix") and hasattr(model, "module"):
        model = model.module
    return getattr(model, "weights_prefix", "")


def load_weights(model: nn.Module, state_dict: Mapping[str, Any], *, strict: bool) -> list[str]:
    """Load parameters and buffers into an unwrapped ``model``.

    Args:
        model: Without wrappers.
        state_dict: Names may carry wrappers' prefixes.
        strict: Whether a missing, unexpected or differently shaped entry is an error.

    Returns:
        One line for each entry that did not fit; empty if all did.

    Raises:
        CheckpointError: If nothing fits, or ``strict`` and something does not; what fits is loaded.
    """
    if not isinstance(state_dict, Mapping) or not all(isinstance(one, str) for one in state_dict):
        raise CheckpointError(
            f"The checkpoint's state_dict is a {type(state_dict).__name__}; a dict of tensors by "
            "name is needed, as the state_dict() of a model returns."
        )
    own: Mapping[str, Any] = model.state_dict()
    # Compared without wrappers on both sides: the model's own attribute may be called "module".
    known = {*own, *(f"{name}." for name in _metadata_of(own))}
    by_clean_name = {clean_name(name): name for name in known}

    def own_name(name: str) -> str:
        return name if name in known else by_clean_name.get(clean_name(name), clean_name(name))

    given = renamed(own_names(model, state_dict), own_name)
    try:
        problems = _load(model, given)
    except CONTENT_ERRORS as error:  # of a module's own set_extra_state, say
        problems, strict = [f"{type(error).__name__}: {error}"], True
    nothing_fits = sum(not one.startswith(_UNEXPECTED) for one in problems) >= len(own)
    if problems and (strict or nothing_fits):
        verdict = (
            "Nothing in the checkpoint fits" if nothing_fits else "The checkpoint does not fit"
        )
        raise CheckpointError(
            f"{verdict} {type(model).__name__}: {'; '.join(_first(problems))}. "
            "Use the model that it was saved from; without resume, load_from takes what fits."
        )
    return problems


def fitting(
    own: Mapping[str, Any], weights: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """Return the entries of ``weights`` that a sharded model takes, and a line for each other one.

    Args:
        own: The state of the model.
        weights: By the names of ``own``.

    Raises:
        CheckpointError: If nothing fits.
    """
    shapes = {name: tuple(getattr(one, "shape", ())) for name, one in own.items()}
    given = {name: tuple(getattr(one, "shape", ())) for name, one in weights.items()}
    fits = OrderedDict((k, one) for k, one in weights.items() if given[k] == shapes.get(k))
    problems = [f"{_MISSING}{name}" for name in shapes if name not in given]
    problems += [f"{_UNEXPECTED}{name}" for name in given if name not in shapes]
    problems += [
        f"size mismatch for {name}: {given[name]} in the checkpoint, {shapes[name]} in the model"
        for name in shapes
        if name in given and name not in fits
    ]
    if not fits:
        raise CheckpointError(f"Nothing in the checkpoint fits: {'; '.join(_first(problems))}.")
    return fits, problems


def describe_misfits(problems: list[str], where: str, num_own: int) -> str:
    """Return a warning about the lines of :func:`load_weights`: alike ones once, with their number.

    Args:
        problems: The lines.
        where: What was loaded, for the message.
        num_own: Entries in the state of the model.
    """
    alike: dict[str, list[str]] = {}
    for line in problems:
        alike.setdefault(_NUMBER_IN_NAME.sub(".*.", line), []).append(line)
    lines = [
        same[0] if len(same) == 1 else f"{pattern} ({len(same)} entries)"
        for pattern, same in alike.items()
    ]
    fitted = num_own - sum(not line.startswith(_UNEXPECTED) for line in problems)
    verdict = f"{where}: {fitted} of the {num_own} entries of the model are loaded"
    return "\n  ".join([f"{verdict}; the others keep their values:", *_first(lines)])


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - _MAX_PROBLEMS
    return [*problems[:_MAX_PROBLEMS], f"and {more} more"] if more > 0 else problems


def renamed(state_dict: Mapping[str, Any], rename: Callable[[str], str]) -> OrderedDict[str, Any]:
    """Return a state with other names, and with its metadata: the versions of its modules.

    A module whose form has changed loads an older version of itself by these.

    Args:
        state_dict: Of a model.
        rename: Takes the name of a tensor, or of a module with a dot behind it.
    """
    state = OrderedDict((rename(name), value) for name, value in state_dict.items())
    metadata = _metadata_of(state_dict)
    if metadata:
        versions = {rename(f"{name}.")[:-1] if name else "": one for name, one in metadata.items()}
        vars(state)[_METADATA] = versions
    return state


def _metadata_of(state_dict: Any) -> dict[str, Any]:
    """Return torch's metadata of the modules by name, reduced to primitives."""
    metadata = getattr(state_dict, _METADATA, None)
    if not isinstance(metadata, Mapping):
        return {}
    return {
        name: {key: value for key, value in one.items() if type(value) in _PRIMITIVES}
        for name, one in metadata.items()
        if isinstance(name, str) and isinstance(one, Mapping)
    }


def _load(model: nn.Module, state: Mapping[str, Any]) -> list[str]:
    """Load what fits, and return a line for each entry that does not."""
    found: list[Any] = []
    untyped: Any = model
    # load_state_dict() returns these only where no shape differs.
    handle = untyped.register_load_state_dict_post_hook(lambda _, keys: found.append(keys))
    try:
        model.load_state_dict(state, strict=False)
        misfits = []
    except RuntimeError as error:
        misfits = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
    finally:
        handle.remove()
    own = model.state_dict(keep_vars=True)
    loaded = {id(one) for name, one in own.items() if name in state}  # one may have several names
    missing = [
        f"{_MISSING}{name}"
        for keys in found
        for name in keys.missing_keys
        if id(own.get(name)) not in loaded
    ]
    unexpected = [f"{_UNEXPECTED}{name}" for keys in found for name in keys.unexpected_keys]
    return missing + unexpected + misfits


def plain(
    value: Any, path: str = "checkpoint", *, to_host: Callable[[Tensor, str], Tensor] | None = None
) -> Any:
    """Return ``value`` with tensors detached and on the CPU.

    Args:
        value: Tensors and primitives, in dicts, lists and tuples.
        path: Where ``value`` stands, for messages.
        to_host: Brings a detached tensor to the CPU, given also its path; by default nothing is
            copied that is there already.

    Raises:
        CheckpointError: If something is neither a tensor nor a primitive, naming its path.
    """
    if isinstance(value, Tensor):
        _check_dense(value, path)
        return value.detach().cpu() if to_host is None else to_host(value.detach(), path)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if type(value) in _PRIMITIVES:
        return value
    # A subclass (a member of an enum, say) would be pickled with its class, which the
    # safe loader refuses.
    if isinstance(value, str):
        return str.__str__(value)  # str(value) of an enum's member is its name
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        state = kind(
            (plain(key, f"{path}.{key}"), plain(item, f"{path}.{key}", to_host=to_host))
            for key, item in value.items()
        )
        if _metadata_of(value):
            vars(state)[_METADATA] = _metadata_of(value)
        return state
    if isinstance(value, (list, tuple)):
        items = [
            plain(item, f"{path}[{index}]", to_host=to_host) for index, item in enumerate(value)
        ]
        return items if isinstance(value, list) else tuple(items)
    raise CheckpointError(
        f"{path}: {type(value).__module__}.{type(value).__name__} cannot be saved; a checkpoint "
        "holds tensors, numbers, text, lists and dicts only, so that it loads without running "
        "code. Convert it in before_save_checkpoint."
    )


def _check_dense(value: Tensor, path: str) -> None:
    if hasattr(value, "full_tensor"):
        raise CheckpointError(
            f"{path} is sharded over processes, and this one holds a part of it; save what the "
            "wrapper's full_state_dict() returns."
        )
    if value.layout is not torch.strided or value.is_quantized:
        raise CheckpointError(
            f"{path} is sparse, nested or quantized; convert it before it is saved."
        )


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of Python's, torch's, the device's and (if imported) NumPy's generators.

    Args:
        device: The device of this process.
    """
    version, internal, gauss = random.getstate()
    # Hundreds of numbers each: as tensors they are written and read much faster.
    state: dict[str, Any] = {
        "python": (version, torch.tensor(internal), gauss),
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        module = getattr(torch, device.type)
        if hasattr(module, "get_rng_state"):
            state[device.type] = module.get_rng_state(device)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, gauss = numpy.random.get_state()
        keys = torch.from_numpy(keys.astype("int64"))
        state["numpy"] = (name, keys, int(position), int(has_gauss), float(gauss))
    return state


def set_rng_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Return the generators to ``state``; those that this process lacks are passed over.

    Raises:
        CheckpointError: If it is no state of generators.
    """
    numpy = sys.modules.get("numpy")
    try:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal[:1000].tolist()), gauss))
        torch.set_rng_state(state["torch"])
        if device.type in state and device.type != "cpu":
            getattr(torch, device.type).set_rng_state(state[device.type], device)
        if numpy is not None and "numpy" in state:
            name, keys, *others = state["numpy"]
            numpy.random.set_state((name, keys.numpy().astype("uint32"), *others))
    except CONTENT_ERRORS as error:
        raise CheckpointError(
            f"The checkpoint's rng cannot be used: {type(error).__name__}: {first_line(error)}"
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its class without one."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
