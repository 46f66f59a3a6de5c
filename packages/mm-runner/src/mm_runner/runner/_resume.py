"""Start a run from a checkpoint: find, read, load or resume."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner._main_process import run_on_all, run_on_main
from mm_runner.checkpoint import (
    SHARDS,
    check_resumable,
    latest_readable,
    load_checkpoint_file,
    own_names,
    read_file,
)
from mm_runner.checkpoint._functions import refuse_url, revised
from mm_runner.checkpoint._pretrained import read_pretrained
from mm_runner.errors import CheckpointError, ConfigError
from mm_runner.model import unwrap_model
from mm_runner.registry import check_section, short_repr

from ._environment import use_seed
from ._sharded import as_sharded, read_own_shards, restore_weights

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ._runner import Runner

# Copied tensor by tensor into a sharded model.
_COPIED = ("state_dict", "optimizer", "ema_state_dict")


class StartingPoint:
    """The checkpoint that a run starts from, read once and loaded once.

    Args:
        load_from: A file or a Hugging Face directory; ``dict(checkpoint=..., revise_keys=...)`` for
            one whose weights have other names, by pairs of a regular expression and its
            replacement; or ``None``.
        resume: Continue from it, or from the newest readable one in the work directory.
        leave_out: Parts of the state that are not restored.

    Attributes:
        path: The file once it is found; ``None`` without a checkpoint.
        content: What it holds, until it is loaded.

    Raises:
        ConfigError: If ``load_from`` is a URL, or names are to change and the run to resume.
    """

    def __init__(
        self,
        load_from: str | Mapping[str, Any] | None,
        *,
        resume: bool,
        leave_out: Collection[str] = (),
    ) -> None:
        self._revised: Sequence[tuple[str, str]] = ()
        if isinstance(load_from, Mapping):
            load_from, self._revised = _with_names(load_from)
            if resume and self._revised:
                raise ConfigError(
                    "load_from.revise_keys: a resumed run takes its own names; leave it out, or "
                    "resume."
                )
        refuse_url(load_from, "load_from")
        self.load_from, self.resume, self.leave_out = load_from, resume, leave_out
        self.path: Path | None = None
        self.content: dict[str, Any] | None = None
        self._is_read = False

    def find(self, runner: Runner) -> None:
        """Find and read the checkpoint, once.

        The seed of a run that resumes becomes that of the checkpoint, before data are built.

        Raises:
            CheckpointError: On all processes, if none can be read.
        """
        if self._is_read or (self.load_from is None and not self.resume):
            return
        content: dict[str, Any] | None = None  # on the main process

        def choose() -> Path | None:
            nonlocal content
            whole = as_sharded(runner.model) is None
            if self.load_from is None:
                path, content = latest_readable(
                    runner.work_dir, runner.logger.warning, shards=whole
                )
                return path
            path = Path(self.load_from)
            content = load_checkpoint_file(path, shards=whole)
            if self.resume:
                check_resumable(content, path)
            return path

        # The main process chooses, so that all resume from the same file.
        self.path = run_on_main(choose)
        if self.path is None:
            runner.logger.info(
                f"resume: {runner.work_dir} has no checkpoint; training from the start."
            )
        else:
            content = _read(runner, self.path, content)
            self.content = revised(content, self._revised) if self._revised else content
            seed = self.content.get("meta", {}).get("seed") if self.resume else None
            if seed not in (None, runner.seed):
                if runner.has_own_seed:
                    runner.logger.warning(
                        f"randomness.seed is {runner.seed}, the checkpoint's {seed}: the "
                        "checkpoint's is used, so that the order of the data stays the same."
                    )
                use_seed(runner, seed)
        self._is_read = True


def _with_names(load_from: Mapping[str, Any]) -> tuple[str, Sequence[tuple[str, str]]]:
    """Check ``load_from`` as a dict; return the file and the changes of names."""
    check_section(load_from, "load_from", {"checkpoint": Any, "revise_keys": Any})
    pairs = load_from.get("revise_keys") or ()
    if not load_from.get("checkpoint"):
        raise ConfigError("load_from.checkpoint: this key is missing. It is the file to load.")
    try:
        for pattern, replacement in pairs:
            re.sub(pattern, replacement, "")
    except (re.error, TypeError, ValueError) as error:
        raise ConfigError(
            "load_from.revise_keys: pairs of a regular expression and its replacement are needed, "
            f"got {short_repr(pairs)}: {error}."
        ) from error
    return str(load_from["checkpoint"]), pairs


def load_or_resume(runner: Runner) -> None:
    """Load the checkpoint of ``load_from`` or ``resume``, once.

    A training that resumes restores all of it, also after an evaluation, which loads the weights.

    Raises:
        CheckpointError: On all processes, if the file cannot be read, or does not fit.
    """
    start = runner.starting_point
    start.find(runner)
    content = start.content
    runner.is_resuming = content is not None and start.resume and runner.is_training
    if content is None:
        return
    if runner.is_training or not start.resume:
        start.content = None
    if runner.is_resuming:
        runner.logger.info(f"Resuming from {start.path}.")
        weights = own_names(unwrap_model(runner.model), content["state_dict"])
        content["state_dict"] = weights
        runner.logs.give("resume")
        runner.call_hook("after_load_checkpoint", checkpoint=content)
        runner.state.restore(content, leave_out=start.leave_out)
        runner.logger.info(f"Resumed after epoch {runner.epoch}, step {runner.iter}.")
    else:
        runner.logger.info(f"Loading {start.path}.")
        _load(runner, content, strict=start.resume)


def load_weights_of(
    runner: Runner,
    filename: str | Path,
    map_location: Any = None,  # noqa: ARG001 - MMEngine's signature
    strict: bool = False,  # noqa: FBT001, FBT002
    revise_keys: Sequence[tuple[str, str]] = ((r"^module\.", ""),),
) -> dict[str, Any]:
    """Load the weights of a checkpoint into the model now, and return the checkpoint.

    Args:
        runner: The run.
        filename: The file.
        map_location: Accepted for MMEngine's signature; weights go where the model is.
        strict: Whether an entry that does not fit is an error; else a warning lists them.
        revise_keys: Pairs of a regular expression and its replacement in the names.

    Raises:
        CheckpointError: On all processes, if it cannot be read, or nothing in it fits.
    """
    checkpoint = revised(_read(runner, Path(filename)), revise_keys)
    _load(runner, checkpoint, strict=strict)
    runner.logger.info(f"Loaded {filename}.")
    return checkpoint


def resume_later(
    runner: Runner,
    filename: str | Path,
    resume_optimizer: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
    resume_param_scheduler: bool = True,  # noqa: FBT001, FBT002
    map_location: Any = None,  # noqa: ARG001
) -> None:
    """Load the weights of a checkpoint now, and let ``train()`` continue from it.

    Raises:
        CheckpointError: On all processes, if the file cannot be read, or does not fit.
        ConfigError: If training is under way.
    """
    if runner.is_training:
        raise ConfigError(
            f"resume({str(filename)!r}) was called while training is under way, whose data and "
            "random numbers cannot go elsewhere. Call it before train(), or take the weights "
            "alone by load_checkpoint()."
        )
    parts = {"optimizer": resume_optimizer, "param_schedulers": resume_param_scheduler}
    leave_out = [name for name, is_resumed in parts.items() if not is_resumed]
    start = StartingPoint(str(filename), resume=True, leave_out=leave_out)
    start.find(runner)
    assert start.content is not None, "a file that cannot be read is an error"
    _load(runner, start.content, strict=True)
    runner.starting_point = start


def _load(runner: Runner, checkpoint: dict[str, Any], *, strict: bool) -> None:
    runner.call_hook("after_load_checkpoint", checkpoint=checkpoint)
    weights = own_names(unwrap_model(runner.model), checkpoint.get("state_dict", checkpoint))
    restore_weights(runner, weights, strict=strict)
    meta = checkpoint.get("meta")
    counts = meta.items() if isinstance(meta, dict) else ()
    runner.loaded_progress = {
        name: value for name, value in counts if name in ("epoch", "iter") and type(value) is int
    }


def _read(runner: Runner, path: Path, content: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read a checkpoint on every process, as it has to lie where all machines find it.

    ``content`` is what this process has read already.

    Raises:
        CheckpointError: On all processes, if one of them cannot read it.
    """
    sharded = as_sharded(runner.model)

    def read() -> None:
        nonlocal content
        if content is None and sharded is not None and runner.rank > 0:
            # The main process broadcasts the tensors.
            mapped = read_pretrained(path) or read_file(path, is_mapped=True)
            # The file may be removed while the run trains.
            content = {
                key: one if key in _COPIED else copy.deepcopy(one) for key, one in mapped.items()
            }
        elif content is None:
            content = load_checkpoint_file(path, shards=sharded is None)
        if sharded is not None and SHARDS in content:
            read_own_shards(sharded, content, path)

    def read_or_explain() -> None:
        try:
            read()
        except CheckpointError as error:
            if runner.world_size == 1:
                raise
            raise CheckpointError(
                f"Process {runner.rank} cannot read the checkpoint: {error} Every process reads "
                "it: it has to lie where all machines find it."
            ) from error

    run_on_all(read_or_explain)
    assert content is not None
    return content
