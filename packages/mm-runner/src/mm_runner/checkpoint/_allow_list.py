"""An unpickler that builds tensors and primitives, and nothing else.

Only for torch 1.13, whose own safe loader does not know the opcode of a float.
"""

from __future__ import annotations

import pickle
from typing import Any

from typing_extensions import override

from ._restricted import RestrictedUnpickler

__all__ = ["AllowListUnpickler"]

_ALLOWED = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class AllowListUnpickler(RestrictedUnpickler):
    """Refuse every name besides those of tensors."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            # In torch's words, which are told as a refusal.
            raise pickle.UnpicklingError(f"Unsupported class {module}.{name}")
        return super().find_class(module, name)
