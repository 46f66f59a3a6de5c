"""How a parameter's state counts steps: in ints for ``torch_npu``, in tensors for torch."""

from collections.abc import Mapping
from typing import Any


def int_step(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's state with ``step``, if there is one, as an int."""
    return {**entry, "step": int(entry["step"])} if "step" in entry else dict(entry)
