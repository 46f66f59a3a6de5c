"""An unpickler that builds tensors and primitives, and nothing else.

Only for torch 1.13, whose own safe loader does not know the opcode of a float.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import IO, Any

from typing_extensions import override

__all__ = ["ALLOW_LIST_PICKLE"]

_ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class _AllowListUnpickler(pickle.Unpickler):
    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            # In torch's words, which are told as a refusal.
            raise pickle.UnpicklingError(f"Unsupported class {module}.{name}")
        return super().find_class(module, name)


def _load(file: IO[bytes], **options: Any) -> Any:
    return _AllowListUnpickler(file, **options).load()


# What torch.load takes as pickle_module; storages it resolves by itself, before asking find_class.
ALLOW_LIST_PICKLE = SimpleNamespace(Unpickler=_AllowListUnpickler, load=_load, __name__="pickle")
