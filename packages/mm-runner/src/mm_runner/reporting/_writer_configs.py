"""Which writers a configuration asks for, in MMEngine's way or by a plain list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mm_runner.errors import ConfigError, did_you_mean

__all__ = ["writer_configs"]

_MMENGINES_NAMES = {
    "LocalVisBackend": "JsonLinesWriter",
    "TensorboardVisBackend": "TensorBoardWriter",
    "WandbVisBackend": "WandbWriter",
}
_KEYS = ("type", "name", "vis_backends", "save_dir")
# How alike a key must be to one of these to be taken for it: ytpe and type are, backend, which
# visualizers of poses take, and vis_backends (0.74) are not.
_SLIP = 0.75


def writer_configs(visualizer: Any, log_writers: Any) -> dict[str, Any]:
    """Return what keeps scalars besides ``scalars.jsonl``: a config or a writer, by its path.

    Args:
        visualizer: ``dict(vis_backends=[dict(type='TensorboardVisBackend'), ...])``, of which other
            keys are ignored: nothing is drawn here; or ``None``. One that is near ``vis_backends``,
            ``type``, ``name`` or ``save_dir`` is taken for a slip.
        log_writers: A name, a config, a writer, or a list of these; or ``None``.

    Raises:
        ConfigError: If one of them is something else, or a key of ``visualizer`` is a slip.

    Example:
        >>> writer_configs(None, ["TensorBoardWriter"])
        {'log_writers[0]': {'type': 'TensorBoardWriter'}}
    """
    if visualizer is not None and not isinstance(visualizer, Mapping):
        raise ConfigError(
            f"visualizer: a dict is needed, got {type(visualizer).__name__}. Give "
            "dict(vis_backends=[dict(type='TensorboardVisBackend')]), or log_writers."
        )
    _check_keys(visualizer or {})
    _check_kind((visualizer or {}).get("type"))
    found: dict[str, Any] = {}
    backends = (visualizer or {}).get("vis_backends")
    for where, given in (("visualizer.vis_backends", backends), ("log_writers", log_writers)):
        entries = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
        for index, entry in enumerate(entries):
            cfg = _as_config(entry, f"{where}[{index}]")
            is_there_anyway = cfg == {"type": "JsonLinesWriter"}
            if not is_there_anyway and cfg not in found.values():
                found[f"{where}[{index}]"] = cfg
    return found


def _check_keys(visualizer: Mapping[str, Any]) -> None:
    """Refuse what can only be a slip: visualizers take arguments of their own, which are many."""
    for key in visualizer:
        hint = did_you_mean(str(key), _KEYS, cutoff=_SLIP)
        if hint and key not in _KEYS:
            raise ConfigError(
                f"visualizer.{key}: unknown key; known are {', '.join(_KEYS)}, and a visualizer's "
                f"own arguments, which are ignored.{hint}"
            )


def _check_kind(kind: Any) -> None:
    """Refuse a type that is no visualizer's, as MMEngine's family names them; none is built."""
    if isinstance(kind, str) and not kind.endswith("Visualizer"):
        raise ConfigError(
            f"visualizer.type: {kind!r} was given; nothing is drawn here, and only names that end "
            "in 'Visualizer' are passed over. Leave it out."
            f"{did_you_mean(kind, ['Visualizer'])}"
        )


def _as_config(entry: Any, where: str) -> Any:
    if isinstance(entry, str):
        entry = {"type": entry}
    if isinstance(entry, Mapping):
        kind = entry.get("type")
        known = _MMENGINES_NAMES.get(kind, kind) if isinstance(kind, str) else kind
        return {**entry, "type": known} if "type" in entry else dict(entry)
    if callable(getattr(entry, "write", None)) and not isinstance(entry, type):
        return entry
    raise ConfigError(
        f"{where}: the name of a writer, a dict with 'type', or an object with write(record) is "
        f"needed, got {entry!r}."
    )
