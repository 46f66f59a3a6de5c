"""What stands for the classes and functions that a foreign checkpoint names: none of them runs."""

from __future__ import annotations

import struct
from typing import Any

import torch
from typing_extensions import Self

__all__ = [
    "Array",
    "Inert",
    "NumberType",
    "decode_text",
    "dummy_getattr",
    "make_array",
    "no_bytes",
    "number",
]

# NumPy's codes of numbers, as torch's types; the byte order is apart.
_TORCH_TYPES = {
    "b1": torch.bool,
    "i1": torch.int8,
    "i2": torch.int16,
    "i4": torch.int32,
    "i8": torch.int64,
    "u1": torch.uint8,
    "f2": torch.float16,
    "f4": torch.float32,
    "f8": torch.float64,
}
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
    """An object of a class that is not looked for: it keeps what the class would have got."""

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


class NumberType:
    """Stands for ``numpy.dtype``: the code of a type of numbers."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = str(code)
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] == ">":
            self.order = ">"


class Array:
    """Stands for ``numpy.ndarray``."""

    shape: tuple[int, ...] = (0,)
    kind: Any = None
    is_fortran = False
    data: Any = b""

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, self.is_fortran, self.data = state

    def to_tensor(self) -> torch.Tensor | None:
        """Return the numbers, ``None`` if they are of a type that torch has not."""
        dtype = _TORCH_TYPES.get(getattr(self.kind, "code", ""))
        if dtype is None or not isinstance(self.data, bytes) or self.kind.order == ">":
            return None
        if not self.data:
            return torch.empty(self.shape, dtype=dtype)
        flat = torch.frombuffer(bytearray(self.data), dtype=dtype)
        if not self.is_fortran:
            return flat.reshape(self.shape)
        backwards = tuple(range(len(self.shape)))[::-1]
        return flat.reshape(self.shape[::-1]).permute(backwards).contiguous()


def make_array(*_: Any) -> Array:
    """Stand for NumPy's function that makes an empty array to be filled."""
    return Array()


def number(kind: Any, data: Any = b"") -> Any:
    """Stand for NumPy's function that makes a scalar; ``None`` if that is no number or text."""
    code = getattr(kind, "code", "")
    if not isinstance(data, bytes):
        return None
    if code.startswith("U"):
        return data.decode("utf-32-be" if kind.order == ">" else "utf-32-le").rstrip("\0")
    if code not in _STRUCT_CODES:
        return None
    return struct.unpack(f"{kind.order}{_STRUCT_CODES[code]}", data)[0]


def decode_text(text: str, encoding: str) -> bytes:
    """Stand for ``_codecs.encode``, by which old protocols write bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def no_bytes() -> bytes:
    """Stand for ``bytes``, which old protocols call for an empty one only."""
    return b""


def dummy_getattr(*_: Any) -> Inert:
    """Stand for ``getattr``, by which pickle names a method: there is none."""
    return Inert()
