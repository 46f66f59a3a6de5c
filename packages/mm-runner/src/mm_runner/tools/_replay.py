"""Replay of the step that failed, from a crash bundle."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from mm_runner.checkpoint import check_resumable, find_latest_checkpoint, load_checkpoint_file
from mm_runner.config import Config
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.hooks import Hook

from ._crash import CONFIG_FILE
from ._trial import EndOfTrialError, train_with

if TYPE_CHECKING:
    from mm_runner.run_view import RunView

# Keys of a bundle that a replay reads.
_FACTS = (
    *("command", "error", "iter", "place"),
    *("python_path", "seed", "work_dir", "world_size"),
)
# What a configuration has in the place of objects, and of classes and functions of a script.
_LOST = re.compile(r"<\w+(\.\w+)+>|<\w+ of \d+ samples>|__main__:\w+")


class _EndAfter(Hook):
    """End the replay after the step that failed."""

    priority = "LOWEST"

    def __init__(self, step: int) -> None:
        self._step = step

    @override
    def after_train_iter(
        self, runner: RunView, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if runner.iter >= self._step:
            raise EndOfTrialError


def replay_crash(folder: str | Path, *, launcher: str | None = None, trust: bool = False) -> str:
    """Train from the newest checkpoint before a crash up to the step that failed.

    What that step raises is raised again. The run's own files are left as they are; the replay
    works in ``replay`` beside the bundle. It runs code: whatever the bundle's configuration names
    is imported, also from the directories that the bundle adds to Python's path.

    Args:
        folder: The bundle, as the message of the crash named it.
        launcher: As of the Runner; by default that of the run.
        trust: Replay a bundle that another user has written, or may have changed.

    Returns:
        A sentence for the user if the step did not fail this time.

    Raises:
        ConfigError: If there is no bundle, it is another user's, or its configuration holds
            objects that only the program had which started the run.
    """
    bundle = Path(folder)
    facts = _read(bundle, trust=trust)
    lost = _LOST.search((bundle / CONFIG_FILE).read_text(encoding="utf-8"))
    if lost is not None:
        raise ConfigError(
            f"{bundle / CONFIG_FILE}: {lost[0]} was an object that no file can hold, so the "
            "configuration alone does not start this run again. Start the program again: "
            f"{' '.join(facts['command'])}"
        )
    for entry in reversed(facts["python_path"]):
        if entry not in sys.path and Path(entry).exists():
            sys.path.insert(0, entry)
    cfg = Config.fromfile(bundle / CONFIG_FILE)
    found = _checkpoint_before(Path(facts["work_dir"]), facts["iter"])
    if found is not None:
        cfg.load_from, cfg.resume = str(found), True
    elif cfg.get("load_from") is None:
        cfg.resume = False
    cfg.work_dir = str(bundle / "replay")
    cfg.randomness = {**(cfg.get("randomness") or {}), "seed": facts["seed"]}
    cfg.default_hooks = {**(cfg.get("default_hooks") or {}), "checkpoint": None}
    cfg.crash_bundle = False
    if launcher is not None or facts["world_size"] == 1:
        cfg.launcher = launcher or "none"
    train_with(cfg, _EndAfter(facts["iter"]))
    place, error = facts["place"], facts["error"]
    return (
        f"{place.capitalize()} did not fail this time; it was {error['type']}: {error['message']}"
    )


def _read(bundle: Path, *, trust: bool) -> dict[str, Any]:
    files = sorted(bundle.glob("rank*.json"))
    if not files or not (bundle / CONFIG_FILE).exists():
        raise ConfigError(
            f"{bundle} was given; a folder with rank<N>.json and {CONFIG_FILE} is needed, as a "
            "training that failed leaves it beside its log."
        )
    others = [one for one in (bundle, bundle / CONFIG_FILE, files[0]) if not _is_own(one)]
    if others and not trust:
        raise ConfigError(
            f"{others[0]} belongs to another user, or others may write to it, and a replay "
            "imports and runs what the bundle names. If you trust it: mm-runner replay --trust."
        )
    try:
        facts = json.loads(files[0].read_text(encoding="utf-8"))
        return {key: facts[key] for key in _FACTS}
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{files[0]} is damaged: {type(error).__name__}: {error}") from error


def _is_own(path: Path) -> bool:
    """Return whether only this user, or root, can have written ``path``, where users are known."""
    if not hasattr(os, "getuid"):
        return True
    found = path.stat()
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & stat.S_IWOTH


def _checkpoint_before(work_dir: Path, step: int) -> Path | None:
    """Return the newest readable checkpoint of at most ``step`` steps."""
    for path in find_latest_checkpoint(work_dir):
        try:
            content = load_checkpoint_file(path)
            check_resumable(content, path)
        except CheckpointError:
            continue
        done = content.get("meta", {}).get("iter")
        if isinstance(done, int) and done <= step:
            return path
    return None
