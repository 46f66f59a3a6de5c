"""What scripts written for MMEngine's Runner call besides ``train``, ``val`` and ``test``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mm_runner.checkpoint import renamed
from mm_runner.errors import ConfigError

from ._checks import without_variables
from ._logs import plain_config
from ._restoring import restore_training, restore_weights
from ._training_parts import TrainingParts
from ._visualizer import RunVisualizer

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

__all__ = ["ScriptApi"]

_MODULE_LEFT_OUT: tuple[tuple[str, str], ...] = ((r"^module\.", ""),)


class ScriptApi(TrainingParts):
    """Single parts of a run, for scripts and notebooks."""

    # What a run begins with.

    def load_or_resume(self) -> None:
        """Load the checkpoint that the Runner was told to begin with, once.

        A training that resumes does so by :meth:`resume`, and all else by :meth:`load_checkpoint`.
        :meth:`train`, :meth:`val` and :meth:`test` call this after ``before_run``; in a script it
        may be called before, and a training that resumes then only takes the weights. Every
        process must call it.

        Raises:
            CheckpointError: On all processes, if the file cannot be read, or does not fit.
        """
        run: Any = self
        with self._start.applying(run) as path:
            if path is None:
                return
            if self.is_resuming:
                self.resume(path)
            else:
                self._load(path)

    def resume(
        self,
        filename: str | os.PathLike[str],
        resume_optimizer: bool = True,  # noqa: FBT001, FBT002 - MMEngine's signature
        resume_param_scheduler: bool = True,  # noqa: FBT001, FBT002
        map_location: Any = "default",
    ) -> None:
        """Go on from a checkpoint. Every process must call this.

        In a script, before :meth:`train`: the model gets its weights now, and the training begins
        where the checkpoint was left. In an override of :meth:`load_or_resume`, it does there.

        Args:
            filename: The file.
            resume_optimizer: Whether the optimizers go on as well. Defaults to ``True``.
            resume_param_scheduler: Whether the schedules do. Defaults to ``True``.
            map_location: Accepted for MMEngine's signature; everything goes where it belongs.

        Raises:
            CheckpointError: On all processes, if the file cannot be read, or does not fit.
            ConfigError: If training is under way.
        """
        run: Any = self
        start = self._start
        with start.applying_file(run, filename) as is_applied:
            if is_applied:
                checkpoint = self._load(filename, map_location)
                self._check_loaded(checkpoint, filename)
                restore_training(
                    run,
                    checkpoint,
                    self._seed,
                    optimizer=resume_optimizer and start.resumes_optimizer,
                    schedules=resume_param_scheduler and start.resumes_schedules,
                    keeps_data=start.keeps_data,
                )
                self.logger.info(f"Going on after epoch {self.epoch}, step {self.iter}.")
                return
        if self.is_training:
            raise ConfigError(
                f"resume({str(filename)!r}) was called while training is under way, whose data and "
                "random numbers cannot go elsewhere. Call it before train(), or take the weights "
                "alone by load_checkpoint()."
            )
        self._load(filename, map_location, is_strict=True)
        start.go_on(Path(filename), optimizer=resume_optimizer, schedules=resume_param_scheduler)

    def load_checkpoint(
        self,
        filename: str | os.PathLike[str],
        map_location: Any = "cpu",  # noqa: ARG002 - MMEngine's signature
        strict: bool = False,  # noqa: FBT001, FBT002
        revise_keys: Sequence[tuple[str, str]] = _MODULE_LEFT_OUT,
    ) -> dict[str, Any]:
        """Give the model the weights of a checkpoint now. Every process must call this.

        Args:
            filename: The file.
            map_location: Accepted for MMEngine's signature; weights go where the model is.
            strict: Whether an entry that does not fit is an error; else the log tells. A run that
                resumes is always strict.
            revise_keys: Pairs of a regular expression and what takes its place in the names. By
                default ``module.`` in front is left out; where the run itself loads a checkpoint,
                nothing is.

        Returns:
            The checkpoint.

        Raises:
            CheckpointError: On all processes, if the file cannot be read, or nothing in it fits.
            ConfigError: If ``revise_keys`` holds something that is no such pair.
        """
        run: Any = self
        strict = strict or self._start.is_strict
        if self._start.is_own_call and revise_keys is _MODULE_LEFT_OUT:
            revise_keys = ()  # a part of the model may be called so
        checkpoint = self._start.content(filename)
        weights = checkpoint.get("state_dict", checkpoint)
        if revise_keys:
            revised: dict[str, Any] = renamed(weights, lambda name: _revised(name, revise_keys))
            is_bare = weights is checkpoint
            checkpoint = revised if is_bare else {**checkpoint, "state_dict": revised}
        # Else hooks keep what they have.
        was_resuming, resumes = self.is_resuming, self.is_resuming and self._start.is_applied
        self.is_resuming = resumes
        try:
            run.call_hook("after_load_checkpoint", checkpoint=checkpoint)
            restore_weights(run, checkpoint, strict=strict or resumes)
        finally:
            self.is_resuming = was_resuming
        self._progress_of_weights = _progress_in(checkpoint)
        if not self._start.is_applied:
            self.logger.info(f"Loaded {filename}.")
        return checkpoint

    def _load(self, filename: Any, *map_location: Any, is_strict: bool = False) -> Any:
        with self._start.calling_load_checkpoint(is_strict=is_strict):
            return self.load_checkpoint(filename, *map_location)

    def _check_loaded(self, checkpoint: Any, filename: Any) -> None:
        if not isinstance(checkpoint, dict):
            raise ConfigError(
                f"{type(self).__name__}.load_checkpoint() returned {checkpoint!r}; resume() needs "
                "the checkpoint that it has loaded."
            )
        seed = checkpoint.get("meta", {}).get("seed")
        if seed not in (None, self.seed):
            self.logger.warning(
                f"{filename} is of a run with the seed {seed}, and the data of this one were built "
                f"with {self.seed}: they come in another order. If it was saved within an epoch, "
                "some samples of that come twice and others not at all; randomness="
                f"dict(seed={seed}) avoids that."
            )

    # What a run tells.

    @property
    def visualizer(self) -> RunVisualizer:
        """Takes scalars, images and configurations for the run's writers."""
        run: Any = self
        return RunVisualizer(run, self._logs)

    def dump_config(self) -> None:
        """Write the configuration, with what has been changed in ``cfg``, to ``config.yaml``.

        It lies in :attr:`log_dir`; the main process writes it. The constructor calls this last of
        all.
        """
        self._logs.dump_config(plain_config(without_variables(self.cfg)))


def _progress_in(checkpoint: dict[str, Any]) -> dict[str, int]:
    """Return how many epochs and steps a checkpoint says that its weights were trained for."""
    meta = checkpoint.get("meta")
    said = meta if isinstance(meta, dict) else {}
    counts = {name: said.get(name) for name in ("epoch", "iter")}
    return {name: one if isinstance(one, int) else 0 for name, one in counts.items()}


def _revised(name: str, revise_keys: Sequence[tuple[str, str]]) -> str:
    for pair in revise_keys:
        try:
            pattern, replacement = pair
            name = re.sub(pattern, replacement, name)
        except (TypeError, ValueError, re.error) as error:
            raise ConfigError(
                f"revise_keys: {pair!r} was given ({error}); a pair of a regular expression and "
                "what takes its place is needed."
            ) from error
    return name
