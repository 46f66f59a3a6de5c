"""Names of a package that are imported on first use, as most runs need few of them."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def importing(package: str, *modules: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of ``package``.

    What its ``__all__`` names is looked for in its ``modules`` in turn.
    """

    def find(name: str) -> Any:
        for module in modules if name in sys.modules[package].__all__ else ():
            found = getattr(import_module(f"{package}.{module}"), name, None)
            if found is not None:
                return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find, lambda: list(sys.modules[package].__all__)
