"""An unpickler for MMEngine's checkpoints that runs nothing of what they name."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any

import torch
from typing_extensions import override

from ._restricted import RestrictedUnpickler
from ._stand_ins import (
    Array,
    Inert,
    NumberType,
    decode_text,
    dummy_getattr,
    make_array,
    no_bytes,
    number,
)

__all__ = ["ForeignNameError", "ForeignUnpickler"]

# Classes under these names hold a configuration or logs: data, which stand-ins keep.
_INERT_PREFIXES = ("mmengine.", "mmcv.", "addict.")
_STAND_INS: dict[tuple[str, str], Any] = {
    ("collections", "Counter"): Inert.named("collections.Counter"),
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): Inert.named("collections.defaultdict"),
    ("builtins", "set"): set,
    ("__builtin__", "set"): set,
    ("builtins", "getattr"): dummy_getattr,
    ("__builtin__", "getattr"): dummy_getattr,
    # The factories of a defaultdict.
    ("builtins", "list"): list,
    ("__builtin__", "list"): list,
    ("builtins", "dict"): dict,
    ("__builtin__", "dict"): dict,
    ("builtins", "int"): int,
    ("__builtin__", "int"): int,
    ("builtins", "bytes"): no_bytes,
    ("__builtin__", "bytes"): no_bytes,
    ("_codecs", "encode"): decode_text,
    ("numpy", "dtype"): NumberType,
    ("numpy", "ndarray"): Array,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _STAND_INS[_module, "_reconstruct"] = make_array
    _STAND_INS[_module, "scalar"] = number
_TORCH = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class ForeignNameError(pickle.UnpicklingError):
    """A file names what is not taken from it; any other error of the kind means damage."""


class ForeignUnpickler(RestrictedUnpickler):
    """Let stand-ins keep the data of MMEngine's and NumPy's objects."""

    with_state = (Inert, NumberType, Array)

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        if f"{module}.".startswith(_INERT_PREFIXES):
            return Inert.named(f"{module}.{name}")
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _TORCH:
            return super().find_class(module, name)
        raise ForeignNameError(
            f"it names {module}.{name}, which is neither a tensor, a number nor a part of MMEngine."
        )
