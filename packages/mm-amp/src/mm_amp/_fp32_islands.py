"""Modules that compute in float32 while the rest of the model is autocast."""

import logging
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ._autocast import no_autocast, parse_device
from ._compiling import call_eagerly, is_compiling
from ._errors import ConfigError, ConfigTypeError
from ._float32 import float32_weights, holds_half_weights, to_float32
from ._module_names import find_modules, parse_patterns
from ._nested import tensors_in

_logger = logging.getLogger(__name__)
_KEY = "_mm_amp_fp32_island"  # where a module keeps its island


def add_fp32_islands(
    model: nn.Module, patterns: str | Iterable[str], *, device_type: str | None = None
) -> "Fp32Islands":
    """Keep some modules of a model in float32 under autocast: a loss head, a norm, a custom op.

    In the forward of such a module, autocast is off, for everything in it, and float16 and
    bfloat16 tensors among its arguments (also in tuples, lists, dicts and dataclasses) are cast to
    float32 first. Its outputs stay float32: operations after it cast them if they want to. The
    parameters, ``state_dict`` and class of the module remain as they are.

    Under ``fully_shard``, call this on the sharded model. Weights that a mixed-precision policy
    gathers in half precision are cast up, which does not undo their rounding: to have an island's
    weights in float32, shard it by itself with a policy without ``param_dtype``.

    Args:
        model: The model, wrapped by DDP or sharded, if it is, or not yet compiled for its first
            call.
        patterns: Glob patterns on module names, such as ``['head', '*.norm']``; ``*`` also
            matches dots. Names are without what wrappers put in front (``module.``,
            ``_orig_mod.``).
        device_type: Whose autocast is turned off, such as ``'cuda'``. Defaults to that of the
            module's parameters, or without any, of the first tensor it is called with.

    Returns:
        A handle: ``names`` of the islands, and ``undo()``.

    Raises:
        ConfigError: If a pattern matches no module, or the arguments are of the wrong type.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
        >>> islands = add_fp32_islands(model, ["1"])
        >>> with autocast("cpu", "bfloat16"):
        ...     model(torch.ones(2, 4)).dtype
        torch.float32
        >>> islands.undo()
    """
    if not isinstance(model, nn.Module):
        raise ConfigTypeError(
            f"fp32_modules names modules of the model, which is a {type(model).__name__}; "
            "it must be a torch.nn.Module."
        )
    if device_type is not None:
        device_type = parse_device(device_type).type
    found = find_modules("fp32_modules", model, parse_patterns("fp32_modules", patterns))
    islands = [module for matched in found for module in _with_sharded_parts(matched)]
    for module in islands:
        _hold(module, found.get(module, type(module).__name__), device_type)
    return Fp32Islands(tuple(found.values()), islands)


def is_fp32_island(module: nn.Module) -> bool:
    """Whether the module computes in float32 because ``add_fp32_islands`` made it."""
    return _KEY in vars(module)


class IslandsOfWrapper:
    """The islands that an optimizer wrapper makes in each model it meets.

    Args:
        patterns: As of ``add_fp32_islands``; checked here as far as that goes without a model.
    """

    def __init__(self, patterns: str | Iterable[str]) -> None:
        self.patterns = parse_patterns("fp32_modules", patterns)
        self._by_model: WeakKeyDictionary[nn.Module, Fp32Islands] = WeakKeyDictionary()

    def add_to(self, model: Any, device_type: str) -> None:
        """Make the islands of ``model``, unless that is done.

        Args:
            model: The model.
            device_type: Whose autocast is turned off: the one that the wrapper turns on.

        Raises:
            ConfigError: If a pattern matches no module of it.
        """
        if self.patterns and model not in self._by_model:
            islands = add_fp32_islands(model, self.patterns, device_type=device_type)
            self._by_model[model] = islands

    def undo(self) -> None:
        """Make the islands of all models ordinary modules again."""
        for islands in self._by_model.values():
            islands.undo()
        self._by_model.clear()

    # Copies and pickles with its models: weak references can do neither.
    def __getstate__(self) -> tuple[tuple[str, ...], list[tuple[nn.Module, "Fp32Islands"]]]:
        return self.patterns, list(self._by_model.items())

    def __setstate__(
        self, state: tuple[tuple[str, ...], list[tuple[nn.Module, "Fp32Islands"]]]
    ) -> None:
        self.patterns, by_model = state
        self._by_model = WeakKeyDictionary(dict(by_model))


class Fp32Islands:
    """The islands that one ``add_fp32_islands`` made.

    Attributes:
        names: Names of the modules that the patterns matched, in the order of the patterns.
    """

    def __init__(self, names: tuple[str, ...], modules: list[nn.Module]) -> None:
        self.names = names
        self._modules = modules

    def undo(self) -> None:
        """Make them ordinary modules again, unless another call wants them in float32 too."""
        while self._modules:
            _release(self._modules.pop())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.names)})"


class _Island:
    """The forward of one module, in float32. Copies and pickles with its module."""

    def __init__(self, module: nn.Module, name: str, device_type: str | None) -> None:
        self.num_holders = 0
        self._module = module
        self._name = name
        self._device_type = device_type
        # A forward of the instance is somebody else's wrapper; else the class is asked each time.
        self._replaced_forward = vars(module).get("forward")
        self._is_checked = False
        self._has_warned = False

    def install(self) -> None:
        vars(self._module)[_KEY] = self
        self._module.forward = self.run

    def remove(self) -> None:
        del vars(self._module)[_KEY]
        if vars(self._module).get("forward") != self.run:
            return  # wrapped again since: stays in place, and passes everything through
        if self._replaced_forward is None:
            del self._module.forward
        else:
            self._module.forward = self._replaced_forward

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if not self.num_holders:
            return self._forward(args, kwargs)
        self._check_parts()
        return call_eagerly(self._run_in_float32, args, kwargs)

    def _run_in_float32(self, args: Any, kwargs: Any) -> Any:
        with no_autocast(self._device_type or self._find_device_type(args, kwargs)):
            args, kwargs = to_float32(args), to_float32(kwargs)
            if not holds_half_weights(self._module):
                return self._forward(args, kwargs)
            self._warn_of_rounded_weights()
            with float32_weights(self._module):
                return self._forward(args, kwargs)

    def _forward(self, args: Any, kwargs: Any) -> Any:
        if self._replaced_forward is not None:
            return self._replaced_forward(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def _find_device_type(self, args: Any, kwargs: Any) -> str:
        tensor: Tensor | None = next(self._module.parameters(), None)
        if tensor is None:
            tensor = next(tensors_in((args, kwargs)), None)
        return "cpu" if tensor is None else tensor.device.type

    def _check_parts(self) -> None:
        """Raise, once, if a part was sharded since: its own policy might cast what it gets."""
        if self._is_checked:
            return
        for part in _with_sharded_parts(self._module):
            if not is_fp32_island(part):
                raise ConfigError(
                    f"the fp32 island {self._name!r} holds a {type(part).__name__} that was "
                    "sharded after it became an island; call add_fp32_islands on the sharded model."
                )
        self._is_checked = True

    def _warn_of_rounded_weights(self) -> None:
        if self._has_warned or is_compiling():
            return
        self._has_warned = True
        _logger.warning(
            "The fp32 island %r computes in float32, but its weights come in half precision: keep "
            "them in float32 with .float(), or, under fully_shard, shard it by itself with a "
            "policy without param_dtype.",
            self._name,
        )


def _hold(module: nn.Module, name: str, device_type: str | None) -> None:
    island = vars(module).get(_KEY)
    if island is None:
        island = _Island(module, name, device_type)
        island.install()
    island.num_holders += 1


def _release(module: nn.Module) -> None:
    island = vars(module)[_KEY]
    island.num_holders -= 1
    if not island.num_holders:
        island.remove()


def _with_sharded_parts(module: nn.Module) -> Iterable[nn.Module]:
    """Yield the module, and those in it that FSDP2 gathers, and maybe casts, by themselves."""
    yield module
    for part in module.modules():
        if part is not module and hasattr(part, "set_requires_gradient_sync"):
            yield part
