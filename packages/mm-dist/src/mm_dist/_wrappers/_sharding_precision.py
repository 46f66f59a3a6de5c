"""In which precision parameters are gathered and gradients reduced, and where they wait."""

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mm_dist._backends import backends_by_device_type
from mm_dist._errors import ConfigError
from mm_dist._info import is_main_process
from mm_dist._suggestion import suggest_name
from mm_dist._wrappers._sharding_selection import find_modules

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

_DTYPE_KEYS = ("param_dtype", "reduce_dtype", "output_dtype")
_FLAG_KEYS = ("cast_forward_inputs", "cast_root_forward_inputs")
_EXEMPT_KEY = "full_precision_modules"
# Batch normalisation keeps its statistics in float32, and refuses weights of another dtype.
_DEFAULT_EXEMPT = ("_BatchNorm",)


@dataclass(frozen=True)
class Precision:
    """The policies of the outermost module, of those inside it, and of those left out.

    Attributes:
        root: Of the model.
        inner: Of the modules inside it.
        exempt: Of the modules that ``exempt_modules`` select; ``None`` if there are none.
        exempt_modules: Classes, names of classes, or patterns on names.
        is_default: Whether ``exempt_modules`` may match nothing.
    """

    root: "MixedPrecisionPolicy"
    inner: "MixedPrecisionPolicy"
    exempt: "MixedPrecisionPolicy | None" = None
    exempt_modules: tuple[Any, ...] = ()
    is_default: bool = True

    def of(self, *, is_root: bool, is_exempt: bool) -> "MixedPrecisionPolicy":
        """Return the policy of a group."""
        if is_exempt and self.exempt is not None:
            return self.exempt
        return self.root if is_root else self.inner

    def find_exempt(self, candidates: Mapping[str, nn.Module]) -> list[nn.Module]:
        """Return the modules that compute in full precision.

        Raises:
            ConfigError: If one was named that is not there.
        """
        if self.exempt is None:
            return []
        return find_modules(
            candidates,
            self.exempt_modules,
            "mixed_precision full_precision_modules",
            is_miss_allowed=self.is_default,
        )


def read_precision(given: Any) -> Precision:
    """Return the policies that ``mixed_precision`` describes.

    Args:
        given: ``None``; a dict; or a ``MixedPrecisionPolicy``, which is then used everywhere as it
            is.

    Raises:
        ConfigError: If a key or a dtype is not known.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415 (slow to import)

    if given is None:
        return Precision(MixedPrecisionPolicy(), MixedPrecisionPolicy())
    if isinstance(given, MixedPrecisionPolicy):
        return Precision(given, given)
    options = _read_options(given)
    # torch 2.15 reduces in the original dtype where older ones use param_dtype: say it always.
    reduce_dtype = options.get("reduce_dtype") or options.get("param_dtype")
    is_casting = options.get("cast_forward_inputs", True)
    inner = MixedPrecisionPolicy(
        param_dtype=options.get("param_dtype"),
        reduce_dtype=reduce_dtype,
        cast_forward_inputs=is_casting,
    )
    root = dataclasses.replace(
        inner,
        # Replacing starts from what the policy has made of its arguments.
        reduce_dtype=reduce_dtype,
        output_dtype=options.get("output_dtype"),
        cast_forward_inputs=options.get("cast_root_forward_inputs", is_casting),
    )
    if options.get("param_dtype") is None:
        return Precision(root, inner)
    full = MixedPrecisionPolicy(torch.float32, output_dtype=options["param_dtype"])
    return Precision(root, inner, full, *_read_exempt(options))


def _read_exempt(options: Mapping[str, Any]) -> tuple[tuple[Any, ...], bool]:
    """Return the modules left out of mixed precision, and whether that is the default."""
    given = options.get(_EXEMPT_KEY)
    if given is None:
        return _DEFAULT_EXEMPT, True
    selectors = [given] if isinstance(given, (str, type)) else list(given)
    wrong = [one for one in selectors if not isinstance(one, (str, type))]
    if wrong:
        raise ConfigError(
            f"mixed_precision {_EXEMPT_KEY} holds {wrong[0]!r}; give classes, names of "
            "classes, or patterns on module names."
        )
    return tuple(selectors), False


def _read_options(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"mixed_precision={given!r} cannot be used; give a dict such as "
            "dict(param_dtype='bfloat16', reduce_dtype='float32'), or None."
        )
    known = (*_DTYPE_KEYS, *_FLAG_KEYS, _EXEMPT_KEY)
    for key in given:
        if key not in known:
            raise ConfigError(
                f"mixed_precision has the key {key!r}; there are: {', '.join(known)}."
                f"{suggest_name(str(key), known)}"
            )
    options = dict(given)
    for key in _DTYPE_KEYS:
        options[key] = _read_dtype(key, options.get(key))
    return options


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
    """Return the policy that ``cpu_offload`` describes.

    Args:
        given: A boolean, ``None``, ``dict(pin_memory=...)``, or a policy of ``fully_shard``.
        device_type: Where the module computes. Memory is never pinned for the CPU itself.

    Raises:
        ConfigError: If it is something else.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy  # noqa: PLC0415 (slow)

    if isinstance(given, OffloadPolicy):
        return given
    options = _read_offload_options(given)
    if options is None:
        return OffloadPolicy()
    _warn_without_cpu_backend()
    return CPUOffloadPolicy(pin_memory=options.get("pin_memory", True) and device_type != "cpu")


def _read_offload_options(given: Any) -> dict[str, bool] | None:
    if given is None or isinstance(given, bool):
        return {} if given else None
    if not isinstance(given, Mapping) or set(given) - {"pin_memory", "offload_params"}:
        raise ConfigError(
            f"cpu_offload={given!r} cannot be used; give True, False or dict(pin_memory=False)."
        )
    options = dict(given)
    return options if options.pop("offload_params", True) else None


def _warn_without_cpu_backend() -> None:
    backends = backends_by_device_type()
    if "cpu" not in backends and is_main_process():
        pairs = ",".join(f"{name}:{backend}" for name, backend in backends.items())
        warnings.warn(
            f"cpu_offload leaves gradients on the CPU, and the process group ({pairs}) cannot "
            "reach it, so that the gradient norm cannot be computed for clipping. Create the "
            f"group with backend='cpu:gloo,{pairs}'.",
            stacklevel=2,
        )
