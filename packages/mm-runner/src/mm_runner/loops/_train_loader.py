"""The loader of a training loop, for which another one may be assigned."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from mm_runner.data import TrainBatches, feed_of_run, stop_persistent_workers
from mm_runner.errors import ConfigError

from ._counted_loader import CountedLoader, uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._resumption import Resumption

__all__ = ["TrainLoader"]


class TrainLoader:
    """What a training loop does with its ``dataloader``.

    A subclass, a script or a hook may assign another one, which counts from the next pass on; in
    ``before_train_epoch``, for the epoch that begins.

    Attributes:
        batches: Those of the loader, drawn pass by pass.
    """

    runner: Any
    batches: TrainBatches
    # A subclass may assign before it calls __init__.
    is_drawing = False
    # Whether a body of a subclass's own draws the batches.
    _is_drawn_by_own = False
    # Whether workers of a loader that was assigned are the loop's to end.
    _has_begun_workers = False
    # The generators, as they were when the pass over the data began.
    _at_pass_begin: dict[str, Any]
    _given_loader: Any  # of the next pass, as it is
    # The loader that the loop was made with, which what was assigned since may draw from, if it
    # keeps workers; else nobody needs it, nor its dataset.
    _first_loader: weakref.ref[Any] | None = None

    @property
    def dataloader(self) -> Any:
        """Training batches.

        Within an epoch, a body of a subclass's own that goes through it is given those of the
        epoch, of a resumed run the ones that are left.

        Raises:
            ConfigError: If what is assigned is no loader.
        """
        return self._dataloader

    @dataloader.setter
    def dataloader(self, loader: Any) -> None:
        is_first = "_dataloader" not in vars(self)
        # What a body of a subclass's own puts there may be anything, also something around ours.
        if is_first or not self._is_drawn_by_own or isinstance(loader, DataLoader):
            self._check_loader(loader)
            self._given_loader = uncounted(loader)
            if self._is_drawn_by_own:
                loader = CountedLoader(self._given_loader, self._open_own)
        self._dataloader = loader
        self._note_loader()

    def _note_loader(self) -> None:
        """Take note that another one was assigned."""

    def _check_loader(self, loader: Any) -> None:
        """Raise unless passes over the loader can be trained on."""
        if isinstance(loader, Mapping) or not hasattr(loader, "__iter__"):
            raise ConfigError(
                f"{type(self).__name__}: its dataloader is to be of type {type(loader).__name__}, "
                "which gives no batches. Give it a DataLoader, as runner.build_dataloader(cfg, "
                "seed=runner.seed) returns it."
            )

    def _open_own(self) -> Iterator[Any]:
        raise NotImplementedError

    def _batches_of(self, loader: Any) -> TrainBatches:
        runner = self.runner
        return TrainBatches(
            loader,
            runner.seed,
            runner.loader_generator,
            runner.logger.info,
            feed_of_run(runner, loader),
        )

    def _close_batches(self) -> None:
        """End the workers of the batches; those that stay, if the loop began them."""
        self.batches.close()
        first = self._first_loader and self._first_loader()
        if first is not None:
            stop_persistent_workers(first)
        if self._has_begun_workers and getattr(self.batches.loader, "persistent_workers", False):
            stop_persistent_workers(self.batches.loader)

    def _take_loader(self, resumption: Resumption | None) -> bool:
        """Let the pass that begins be one over what was assigned to ``dataloader`` meanwhile.

        Returns:
            Whether that is another one.
        """
        before = self.batches
        if self._given_loader is before.loader:
            return False
        self._close_batches()
        if before.keeps_workers and self._first_loader is None:
            self._first_loader = weakref.ref(before.loader)
        loader = self._given_loader
        is_idle = getattr(loader, "_iterator", None) is None
        self._has_begun_workers = is_idle and not hasattr(loader, "state_dict")
        self.batches = self._batches_of(loader)
        self.batches.use_order(before.order)
        if resumption is not None and resumption.position.is_begun:
            self.batches.set_generator_states(resumption.state["pass"].get("generators", {}))
        self._at_pass_begin["generators"] = self.batches.generator_states()
        return True
