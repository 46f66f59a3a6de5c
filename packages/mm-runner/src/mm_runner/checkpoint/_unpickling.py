"""Unpickling of torch's files restricted to an allow-list."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from typing import Any, ClassVar

from typing_extensions import override

__all__ = ["RestrictedUnpickler", "TensorUnpickler"]

# Not in typeshed's type information.
_Unpickler: Any = pickle._Unpickler  # noqa: SLF001 - C's lets no opcode be overridden
_OF_TENSORS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor_v2"),
}


class RestrictedUnpickler(_Unpickler):  # type: ignore[misc]
    """Base of unpicklers that set no state but of allowed objects and load nothing but storages.

    A subclass decides in ``find_class`` which names a file may use.
    """

    # Classes whose instances take their state from a file, by their own __setstate__.
    with_state: ClassVar[tuple[type, ...]] = ()
    dispatch: ClassVar[dict[int, Any]] = dict(_Unpickler.dispatch)

    def load_build(self) -> None:
        """Set the state of the object on the stack; functions and classes have none to set."""
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is OrderedDict:  # a state_dict, whose only attribute is its metadata
            if isinstance(state, dict) and "_metadata" in state:
                vars(target)["_metadata"] = state["_metadata"]
        elif isinstance(target, self.with_state):
            target.__setstate__(state)  # type: ignore[attr-defined]
        else:
            raise pickle.UnpicklingError(f"it sets the state of a {type(target).__name__}")

    def load_persistent(self) -> None:
        """Load a storage; torch would write a file for the id of a module."""
        saved_id = self.stack.pop()
        is_storage = isinstance(saved_id, tuple) and saved_id[:1] in (("storage",), (b"storage",))
        if not is_storage:
            raise pickle.UnpicklingError("it refers to something besides a storage")
        self.stack.append(self.persistent_load(saved_id))

    def refuse(self) -> None:
        """Refuse an opcode that torch.save does not write."""
        raise pickle.UnpicklingError("it has an opcode that torch.save does not write")

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.BINPERSID[0]] = load_persistent
    # The last three name a function or class without find_class.
    dispatch.update(dict.fromkeys(pickle.PERSID + pickle.EXT1 + pickle.EXT2 + pickle.EXT4, refuse))


class TensorUnpickler(RestrictedUnpickler):
    """Build tensors and primitives only.

    For torch 1.13, whose own safe loader does not know the opcode of a float.
    """

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _OF_TENSORS:
            # In torch's words, which are reported as a refusal.
            raise pickle.UnpicklingError(f"Unsupported class {module}.{name}")
        return super().find_class(module, name)
