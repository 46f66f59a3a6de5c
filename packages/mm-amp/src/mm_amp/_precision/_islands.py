"""fp32 islands: modules that compute in float32 while the rest of the model is autocast."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from mm_amp._errors import ConfigError, ConfigTypeError
from mm_amp._names import find_modules, parse_patterns
from mm_amp._precision._autocast import no_autocast, parse_device
from mm_amp._precision._nested import HALF_DTYPES, tensors_in, to_float32

_KEY = "_mm_amp_fp32_island"  # where a module keeps its island


def add_fp32_islands(
    model: nn.Module, patterns: str | Iterable[str], *, device_type: str | None = None
) -> "Fp32Islands":
    """Keep some modules of a model in float32 under autocast: a loss head, a norm, a custom op.

    In the forward of such a module, autocast is off, for everything in it, and float16 and
    bfloat16 tensors among its arguments (also in tuples, lists, dicts and dataclasses) are cast to
    float32 first. Its outputs stay float32: operations after it cast them where needed. The
    parameters, which have to be in float32, ``state_dict`` and class of the module stay unchanged.

    Under ``fully_shard``, call this on the sharded model. Where a mixed-precision policy has
    ``param_dtype``, shard each island by itself with a policy without it.

    Args:
        model: The model, wrapped by DDP or sharded, if it is, or not yet compiled for its first
            call.
        patterns: Glob patterns on module names, such as ``['head', '*.norm']``; ``*`` also
            matches dots. Names are without those of wrappers (``module.``, ``_orig_mod.``).
        device_type: The device whose autocast is turned off, such as ``'cuda'``. Defaults to that
            of the module's parameters, or without any, of the first tensor among its arguments.

    Returns:
        A handle: ``names`` of the islands, and ``undo()``. A module that is an island already
        stays one until the handle that made it is undone.

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
    made = []
    for matched, name in found.items():
        # Parts that fully_shard gathers by themselves may cast by themselves too: check each.
        parts = [part for part in matched.modules() if hasattr(part, "set_requires_gradient_sync")]
        for module in dict.fromkeys([matched, *parts]):
            if _KEY not in vars(module):
                _Island(module, name, device_type)
                made.append(module)
    return Fp32Islands(tuple(found.values()), made)


class Fp32Islands:
    """Handle of the islands that one ``add_fp32_islands`` made.

    Attributes:
        names: Names of the modules that the patterns matched, in the order of the patterns.
    """

    def __init__(self, names: tuple[str, ...], modules: list[nn.Module]) -> None:
        self.names = names
        self._modules = modules

    def undo(self) -> None:
        """Make them ordinary modules again."""
        while self._modules:
            vars(self._modules.pop())[_KEY].remove()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.names)})"


class _Island:
    """Forward of one module in float32. Copies and pickles with its module."""

    def __init__(self, module: nn.Module, name: str, device_type: str | None) -> None:
        self._is_on = True
        self._module = module
        self._name = name
        self._device_type = device_type
        # A forward of the instance wraps the class's; else the class is asked in each call.
        self._replaced_forward = vars(module).get("forward")
        vars(module)[_KEY] = self
        module.forward = self.run

    def remove(self) -> None:
        self._is_on = False
        del vars(self._module)[_KEY]
        if vars(self._module).get("forward") != self.run:
            return  # wrapped again since: stays in place, and passes everything through
        if self._replaced_forward is None:
            del self._module.forward
        else:
            self._module.forward = self._replaced_forward

    def run(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_on:
            return self._forward(args, kwargs)
        with no_autocast(self._device_type or self._find_device_type(args, kwargs)):
            for parameter in self._module.parameters():
                if parameter.dtype in HALF_DTYPES:
                    raise ConfigError(
                        f"the fp32 island {self._name!r} has {parameter.dtype} parameters; keep "
                        "them in float32 with .float(), or, under fully_shard, shard it by itself "
                        "with a policy without param_dtype."
                    )
            return self._forward(to_float32(args), to_float32(kwargs))

    def _forward(self, args: Any, kwargs: Any) -> Any:
        if self._replaced_forward is not None:
            return self._replaced_forward(*args, **kwargs)
        return type(self._module).forward(self._module, *args, **kwargs)

    def _find_device_type(self, args: Any, kwargs: Any) -> str:
        tensor: Tensor | None = next(self._module.parameters(), None)
        if tensor is None:
            tensor = next(tensors_in((args, kwargs)), None)
        return "cpu" if tensor is None else tensor.device.type
