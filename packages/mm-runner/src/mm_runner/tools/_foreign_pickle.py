"""Unpickler for MMEngine's checkpoints that replaces their classes by inert stand-ins."""

from __future__ import annotations

import pickle
import struct
from collections import OrderedDict
from typing import Any

import torch
from typing_extensions import Self, override

from mm_runner.checkpoint._reading import RestrictedUnpickler

__all__ = ["ForeignNameError", "ForeignUnpickler", "Inert"]

# NumPy's codes of numbers, as those of Python's struct.
_STRUCT_CODES = {
    "b1": "?",
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f2": "e",
    "f4": "f",
    "f8": "d",
}


class Inert:
    """Stand-in for an object of a foreign class: keeps its arguments, state and items."""

    origin = ""
    arguments: tuple[Any, ...]
    state: Any
    entries: dict[Any, Any]
    elements: list[Any]

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Keep the arguments of the class, or of its ``__new__``."""
        self = super().__new__(cls)
        self.arguments = args
        self.state, self.entries, self.elements = None, {}, []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, element: Any) -> None:
        """Keep an element of a list."""
        self.elements.append(element)

    @classmethod
    def named(cls, origin: str) -> type[Inert]:
        """Return a class of its own for ``origin``, such as ``"mmengine.config.ConfigDict"``."""
        return type("Inert", (cls,), {"origin": origin})


class _NumberType:
    """Stands for ``numpy.dtype``: the code of a type of numbers."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            self.order = ">"


def _number(kind: Any, data: Any = b"") -> Any:
    """Stand for NumPy's function that makes a scalar; ``None`` if that is no number or text."""
    code = getattr(kind, "code", "")
    if not isinstance(data, bytes):
        return None
    if code.startswith("U"):
        return data.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    if code not in _STRUCT_CODES:
        return None
    return struct.unpack(f"{kind.order}{_STRUCT_CODES[code]}", data)[0]


def _bytes_of(text: str, encoding: str) -> bytes:
    """Stand for ``_codecs.encode``, by which old protocols write bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Stand for ``bytes``, which old protocols call for an empty one only."""
    return b""


def _nothing(*_: Any) -> Inert:
    """Stand for ``getattr``, by which pickle names a method, and for NumPy's empty array."""
    return _Array()


_Array = Inert.named("numpy.ndarray")
_BUILTINS = {
    "set": set,
    "list": list,
    "dict": dict,
    "int": int,
    "getattr": _nothing,
    "bytes": _no_bytes,
}
_STAND_INS: dict[tuple[str, str], Any] = {
    ("collections", "Counter"): Inert.named("collections.Counter"),
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): Inert.named("collections.defaultdict"),
    ("_codecs", "encode"): _bytes_of,
    ("numpy", "dtype"): _NumberType,
    ("numpy", "ndarray"): _Array,
}
for _module in ("builtins", "__builtin__"):
    _STAND_INS.update({(_module, name): one for name, one in _BUILTINS.items()})
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _STAND_INS[_module, "_reconstruct"] = _nothing
    _STAND_INS[_module, "scalar"] = _number
_TORCH = {
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class ForeignNameError(pickle.UnpicklingError):
    """A file names a class or function outside the allow-list."""


class ForeignUnpickler(RestrictedUnpickler):
    """Build tensors, numbers, and stand-ins for the objects of MMEngine and NumPy."""

    with_state = (Inert, _NumberType)

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        # Classes under these names hold a configuration or logs.
        if f"{module}.".startswith(("mmengine.", "mmcv.", "addict.")):
            return Inert.named(f"{module}.{name}")
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) in _TORCH:
            return super().find_class(module, name)
        raise ForeignNameError(
            f"it names {module}.{name}, which is neither a tensor, a number nor a part of MMEngine."
        )
