"""The state of a sharded model and its optimizer, and saving it.

A wrapper whose parameters are spread over the processes offers ``full_state_dict`` and its
counterparts (``mm_dist.MMFullyShardedDataParallel`` does); all processes call these together.
Its optimizer state goes by names of parameters, a checkpoint's by their positions, so that a file
written with either kind of wrapper starts a run with the other.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from mm_runner._main_process import run_on_main
from mm_runner._torch_private import version_of_module
from mm_runner.checkpoint import (
    SHARDED_VERSION,
    SHARDS,
    ShardFolder,
    first_line,
    plain,
    split_shards,
)
from mm_runner.errors import CheckpointError, CheckpointWriteError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from torch import nn

    from mm_dist import MMFullyShardedDataParallel
    from mm_runner.checkpoint import BackgroundWriter

    from ._runner import Runner

__all__ = [
    "ShardedSaving",
    "as_sharded",
    "can_save_shards",
    "check_versions",
    "read_optimizer",
    "versions_of",
    "write_optimizer",
]

_LOOK_S = 0.02
# How long to wait for others once this process ends by an error: they may be gone.
_PATIENCE_S = 30.0


def as_sharded(model: nn.Module) -> MMFullyShardedDataParallel | None:
    """Return ``model`` if its parameters are spread over the processes, else ``None``."""
    has_parts = hasattr(model, "full_state_dict") and hasattr(model, "load_optimizer_state_dict")
    return cast("MMFullyShardedDataParallel", model) if has_parts else None


def versions_of(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the versions of the modules, as torch's own state_dict() has them."""
    return {
        f"{name}.".replace("_orig_mod.", "")[:-1]: {"version": version_of_module(one)}
        for name, one in module.named_modules()
    }


def check_versions(state_dict: Mapping[str, Any], module: nn.Module) -> None:
    """Raise if a module is to load an older version of itself, which only a whole one does.

    Raises:
        CheckpointError: Naming the module.
    """
    own = versions_of(module)
    for name, saved in getattr(state_dict, "_metadata", {}).items():
        version, needed = saved.get("version"), own.get(name, saved).get("version")
        if version != needed:
            raise CheckpointError(
                f"The checkpoint has version {version} of the module {name!r}, and the model "
                f"version {needed}. A sharded model does not convert it: resume once without "
                "sharding, and save it."
            )


def read_optimizer(
    model: MMFullyShardedDataParallel, optim_wrapper: Any, *, is_whole: bool
) -> dict[str, Any]:
    """Return the optimizer state, by positions. Every process must call this.

    Args:
        model: The sharded model.
        optim_wrapper: Of its optimizer.
        is_whole: Gather it on the first process; the others get only what is not the optimizer's
            own. Otherwise tensors stay spread over all.
    """
    state = {name: value for name, value in optim_wrapper.state_dict().items() if name != "state"}
    optimizer = optim_wrapper.optimizer
    named = model.optimizer_state_dict(optimizer, kind="full" if is_whole else "sharded")
    if not named:
        return state
    groups, states = named["param_groups"], named["state"]
    names = [name for group in groups for name in group["params"]]
    positions = count()
    state["state"] = {index: states[name] for index, name in enumerate(names) if name in states}
    state["param_groups"] = [
        {**group, "params": [next(positions) for _ in group["params"]]} for group in groups
    ]
    return state


def write_optimizer(
    model: MMFullyShardedDataParallel, optim_wrapper: Any, saved: Mapping[str, Any]
) -> None:
    """Spread a whole optimizer state over the processes, and give the wrapper its extras.

    Every process must call this.

    Raises:
        CheckpointError: If the state is of another number of parameters.
    """
    optimizer = optim_wrapper.optimizer
    own = {id(one): name for name, one in model.module.named_parameters()}
    names = [
        [own[id(one)].replace("_orig_mod.", "") for one in group["params"]]
        for group in optimizer.param_groups
    ]
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != [len(group) for group in names]:
        raise CheckpointError(
            f"The checkpoint's optimizer has parameter groups of {sizes} parameters, this run's of "
            f"{[len(group) for group in names]}. Build the same optimizer, or start with "
            "load_from and resume=False, which takes the weights alone."
        )
    by_position = dict(enumerate(name for group in names for name in group))
    model.load_optimizer_state_dict(
        optimizer,
        {
            "state": {by_position[index]: value for index, value in saved["state"].items()},
            "param_groups": [
                {**group, "params": own}
                for group, own in zip(saved["param_groups"], names, strict=True)
            ],
        },
    )
    # The rest of the wrapper's state, such as its loss scale, around what is loaded already.
    optim_wrapper.load_state_dict({**saved, **optimizer.state_dict()})


def can_save_shards() -> bool:
    """Return whether this torch saves sharded tensors as they are; else they are gathered."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)


class ShardedSaving:
    """Writes checkpoints of sharded models. Every process must make the same calls."""

    def __init__(self) -> None:
        # Of its own: a thread must not use a group that the training uses.
        self._group: dist.ProcessGroup | None = None

    def write(
        self,
        runner: Runner,
        checkpoint: dict[str, Any],
        path: Path,
        write_file: Callable[[dict[str, Any]], object],
        writer: BackgroundWriter | None = None,
    ) -> None:
        """Write ``checkpoint``, in which tensors may be sharded.

        Args:
            runner: The run.
            checkpoint: Of the first process all counts, of the others their shards.
            path: The file.
            write_file: Called on the first process with what belongs into the file.
            writer: Writes a copy while training continues.

        Raises:
            CheckpointError: On all processes, if something cannot be saved or written.
        """
        # Slow to import.
        from torch.distributed.checkpoint import filesystem, state_dict_saver  # noqa: PLC0415

        split = split_shards(checkpoint)
        opened: list[ShardFolder] = []

        def open_folder() -> Path:
            opened.append(ShardFolder(path))
            return opened[0].path

        folder = run_on_main(open_folder)
        meta = {**split.rest["meta"], "format_version": SHARDED_VERSION}
        shards = {"folder": folder.name, "tensors": split.layout}
        rest = plain({**split.rest, "meta": meta, SHARDS: shards}) if runner.rank == 0 else {}

        def end() -> None:
            write_file(rest)
            opened[0].close()

        self._group = self._group or dist.new_group(backend="gloo")
        options: dict[str, Any] = {
            "storage_writer": filesystem.FileSystemWriter(folder),
            "process_group": self._group,
        }
        if writer is None:
            with _removing(opened, path):
                state_dict_saver.save(split.tensors, **options)
                run_on_main(end)
            return
        with _removing(opened, path):
            response: Any = state_dict_saver.async_save(split.tensors, **options)
        future = getattr(response, "upload_completion", response)
        is_abandoned = writer.is_abandoned

        def end_later(_: Any) -> None:
            if opened:
                with _removing(opened, path):
                    _wait(future, is_abandoned)
                    end()
            else:
                with suppress(BaseException):  # the first process reports it
                    _wait(future, is_abandoned)

        writer.submit({}, end_later)

    def close(self) -> None:
        """Leave the group of processes."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


@contextmanager
def _removing(opened: list[ShardFolder], path: Path) -> Iterator[None]:
    """Remove the folder if the block fails, and raise a CheckpointWriteError."""
    try:
        yield
    except BaseException as error:
        for folder in opened:
            folder.remove()
        # torch's CheckpointException, of all ranks alike, is no Exception.
        failures = list(getattr(error, "failures", {}).values())
        if isinstance(error, CheckpointError) or not (failures or isinstance(error, Exception)):
            raise
        cause = failures[0][0] if failures else error
        raise CheckpointWriteError(f"Writing {path} failed: {first_line(cause)}") from error


def _wait(future: Future[Any], is_abandoned: threading.Event) -> None:
    limit = None
    while not future.done():
        if is_abandoned.is_set():
            limit = limit or time.monotonic() + _PATIENCE_S
            if time.monotonic() > limit:
                raise CheckpointWriteError("other processes did not write their shards")
        time.sleep(_LOOK_S)
    future.result()
