"""``mode`` and ``options``, which inductor takes and few other backends do."""

import inspect
import logging
from collections.abc import Mapping
from typing import Any

_logger = logging.getLogger(__name__)


def lookup(keywords: Mapping[str, Any]) -> Any:
    """Return the function of the backend, one that exists and is not inductor."""
    backend = keywords["backend"]
    if not isinstance(backend, str):
        return backend
    from torch._dynamo.backends.registry import lookup_backend  # noqa: PLC0415 - imports dynamo

    return lookup_backend(backend)


def untaken(keywords: Mapping[str, Any]) -> list[str]:
    """Name those of ``mode`` and ``options`` that are set and that the backend does not take."""
    given = [name for name in ("mode", "options") if _is_set(name, keywords)]
    if not given or keywords.get("backend", "inductor") == "inductor":
        return []
    function = lookup(keywords)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return []
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    # torch's own take any, for inductor's sake, and ignore them.
    is_torchs = str(getattr(function, "__module__", "")).startswith("torch._dynamo.")
    if takes_any and not is_torchs:
        return []
    return [name for name in given if name not in parameters]


def taken(keywords: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Return the keywords without what the backend does not take, which is logged.

    Args:
        keywords: Those of ``torch.compile``.
        label: The backend's name.
    """
    names = untaken(keywords)
    for name in names:
        _logger.warning(
            "compile: %s=%r is left out: backend %r does not take it, inductor does.",
            name,
            keywords[name],
            label,
        )
    return {name: value for name, value in keywords.items() if name not in names}


def extra(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a backend other than inductor is called with; as torch does, no defaults."""
    return {name: keywords[name] for name in ("mode", "options") if _is_set(name, keywords)}


def _is_set(name: str, keywords: Mapping[str, Any]) -> bool:
    return keywords.get(name) not in (None, "default", {})
