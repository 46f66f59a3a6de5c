"""Sharded tensors in a folder written by ``torch.distributed.checkpoint``.

Such a checkpoint is a file, as any other, and a folder beside it. The file holds everything but the
sharded tensors, which are ``None`` in it, and names the folder. It is written last, so the
checkpoint is whole whenever the file is there. The folder is torch's own:
``torch.distributed.checkpoint.load`` reads it, by keys such as ``state_dict.layers.0.weight``. For
such readers it holds a copy of the model's buffers too.
"""

from __future__ import annotations

import copy
import io
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from typing_extensions import override

import mm_dist
from mm_runner._main_process import run_on_main
from mm_runner._untrusted import is_file_name
from mm_runner.errors import CheckpointError

from ._content import first_line, plain
from ._pretrained import read_pretrained
from ._reading import RefusalError, RestrictedUnpickler, read_file
from ._writing import remove_unfinished, write_error

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ._writing import BackgroundWriter

# Key of the checkpoint under which it names its folder.
SHARDS = "shards"
_INFIX = ".shards-"
_NAME = re.compile(rf"(.+){re.escape(_INFIX)}[0-9a-f]{{12}}", re.DOTALL)

# What torch's metadata of a folder is made of; nothing else is built from it.
_MODULES = tuple(f"torch.distributed.checkpoint.{name}" for name in ("metadata", "filesystem"))
_CLASSES = {
    *("_StorageInfo", "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
    *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
}
_OTHERS = {
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


def load_checkpoint_file(path: str | os.PathLike[str], *, shards: bool = True) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, checksums compared; no code in the file is run.

    Args:
        path: The file; or a safetensors file or a Hugging Face directory, which hold weights only.
        shards: Join the sharded tensors of its folder, whole; otherwise they are ``None``, and the
            folder is only checked.

    Raises:
        CheckpointError: If the file, or its folder, is absent, damaged, or holds pickled objects.
    """
    path = Path(path)
    pretrained = read_pretrained(path)
    if pretrained is not None:
        return pretrained
    checkpoint = read_file(path)
    if SHARDS in checkpoint:
        content = checkpoint if shards else {SHARDS: checkpoint[SHARDS]}
        read_shards(content, path, lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
    return checkpoint


class ShardWriter:
    """Writes checkpoints of sharded models. Every process must make the same calls."""

    def __init__(self) -> None:
        # Of its own: a thread must not use a group that the training uses.
        self._group: dist.ProcessGroup | None = None

    def write(
        self,
        checkpoint: Mapping[str, Any],
        path: Path,
        write_file: Callable[[dict[str, Any]], object],
        writer: BackgroundWriter | None = None,
    ) -> None:
        """Write ``checkpoint``, in which tensors may be sharded.

        Args:
            checkpoint: The first process writes all of it, the others their shards.
            path: The file.
            write_file: Called on the first process with what belongs into the file.
            writer: Writes a copy while training continues.

        Raises:
            CheckpointError: On all processes, if something cannot be saved or written.
        """
        # Slow to import.
        from torch.distributed.checkpoint import filesystem, state_dict_saver  # noqa: PLC0415

        tensors: dict[str, Any] = {}
        rest = {name: _split(item, name, tensors) for name, item in checkpoint.items()}
        # A new one: a checkpoint of the same name, with its folder, stays whole meanwhile.
        folder = path.with_name(f"{path.name}{_INFIX}{run_on_main(lambda: uuid.uuid4().hex[:12])}")
        # The thread writes it while training changes the originals.
        copy_all = None if writer is None else lambda one, _: one.cpu().clone()
        rest = {**rest, SHARDS: folder.name} if mm_dist.is_main_process() else {}
        rest = plain(rest, to_host=copy_all)
        self._group = self._group or dist.new_group(backend="gloo")
        save = partial(
            state_dict_saver.save,
            storage_writer=filesystem.FileSystemWriter(folder),
            process_group=self._group,
        )
        if writer is None:
            with _removing(folder, path):
                save(tensors)
                run_on_main(lambda: write_file(rest))
            return

        def write(copies: dict[str, Any]) -> None:
            with _removing(folder, path):
                save(copies)
                if rest:
                    write_file(rest)

        # torch's async_save allocates new memory for each copy, which takes longer than copying.
        writer.submit(tensors, write, _copied)

    def close(self) -> None:
        """Leave the group of processes."""
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


def _split(value: Any, key: str, tensors: dict[str, Any]) -> Any:
    """Return ``value`` with ``None`` for sharded tensors, and put these into ``tensors``."""
    if hasattr(value, "full_tensor"):
        tensors[key] = value.detach()
        return None
    if not isinstance(value, Mapping):
        if isinstance(value, torch.Tensor) and key.startswith("state_dict."):
            tensors[key] = value.detach()  # a plain dcp.load of the model reads buffers too
        return value
    state: Any = copy.copy(value)  # with the metadata of a state_dict
    state.update((name, _split(item, f"{key}.{name}", tensors)) for name, item in value.items())
    return state


def _copied(tensors: dict[str, Any], to_host: Callable[..., Any]) -> dict[str, Any]:
    return {key: to_host(one, key) for key, one in tensors.items()}


@contextmanager
def _removing(folder: Path, path: Path) -> Iterator[None]:
    """Remove the folder if the block fails, and raise a CheckpointWriteError."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        # torch's CheckpointException, of all ranks alike, is no Exception.
        failures = list(getattr(error, "failures", {}).values())
        if isinstance(error, CheckpointError) or not (failures or isinstance(error, Exception)):
            raise
        raise write_error(path, failures[0][0] if failures else error) from error


def read_shards(checkpoint: dict[str, Any], path: Path, empty: Callable[..., torch.Tensor]) -> None:
    """Put the sharded tensors into a checkpoint that was read.

    Args:
        checkpoint: Changed in place.
        path: Its file.
        empty: Takes a key such as ``state_dict.layer.weight``, a shape and a dtype, and returns the
            tensor to fill. Of a sharded one this process reads its own part.

    Raises:
        CheckpointError: If the folder is missing, damaged, or does not fit.
    """
    tensors: dict[str, torch.Tensor] = {}

    def walk(value: Any, key: str) -> Any:
        if value is None and key in sizes:
            tensors[key] = empty(key, sizes[key].size, sizes[key].properties.dtype)
            return tensors[key]
        if isinstance(value, dict):
            for name, item in value.items():
                value[name] = walk(item, f"{key}.{name}")
        return value

    try:
        reader, metadata = _open(path.parent / _bare(checkpoint[SHARDS]))
        sizes = metadata.state_dict_metadata
        for name, value in checkpoint.items():
            checkpoint[name] = walk(value, name)
        _fill(tensors, reader, metadata)
    except CheckpointError:
        raise
    except Exception as error:  # a missing file, text in the place of a number, and others
        raise CheckpointError(
            f"{path} is damaged: the folder of its sharded tensors does not fit it: "
            f"{first_line(error)}"
        ) from error


def _open(folder: Path) -> tuple[Any, Any]:
    """Return torch's reader of a folder, and its metadata once it is checked."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415 - slow
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415

    if not (folder / ".metadata").is_file():  # reading a pipe or a device might never end
        raise CheckpointError(f"{folder} has no file .metadata.")
    metadata = _MetadataUnpickler(io.BytesIO((folder / ".metadata").read_bytes())).load()
    for key, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):  # torch would unpickle it
            raise CheckpointError(f"{folder}: {key} is no tensor.")
    files = {}
    for one in metadata.storage_data.values():
        file = folder / _bare(one.relative_path)
        size = files[file] = file.stat().st_size
        if not (one.offset >= 0 and one.length >= 0 and one.offset + one.length <= size):
            raise CheckpointError(f"{file} is damaged: it is cut off.")
    stored = sum(files.values())
    # No shape may take memory that the files cannot fill.
    declared = sum(
        torch.empty(one.size, dtype=one.properties.dtype, device="meta").nbytes
        for one in metadata.state_dict_metadata.values()
    )
    if declared > stored:
        raise CheckpointError(f"{folder}: its files hold less than the {declared} bytes declared.")
    return FileSystemReader(folder), metadata


def _fill(tensors: dict[str, Any], reader: Any, metadata: Any) -> None:
    """Fill ``tensors`` by torch's planner, which finds what this process needs in the files."""
    from torch.distributed.checkpoint.default_planner import (  # noqa: PLC0415 - slow to import
        DefaultLoadPlanner,
    )

    planner = DefaultLoadPlanner()
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


class _MetadataUnpickler(RestrictedUnpickler):
    """Build torch's metadata of a folder, and nothing else."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        is_metadata = module in _MODULES and name in _CLASSES
        if not (is_dtype or is_metadata or (module, name) in _OTHERS):
            raise RefusalError(f"it names {module}.{name}")
        found = super().find_class(module, name)
        if is_metadata:
            self.with_state = (*self.with_state, found)
        return found


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint, with its folder if it has one.

    Raises:
        OSError: If it cannot be removed.
    """
    path.unlink(missing_ok=True)
    for folder, name in _folders_in(path.parent):
        if name == path.name:
            shutil.rmtree(folder)


def remove_leftovers(directory: Path) -> list[Path]:
    """Remove what killed runs left in ``directory``, and return it.

    That is unfinished files, and folders that no checkpoint names. Nothing may be saving a sharded
    model there.
    """
    removed = remove_unfinished(directory)
    for folder, name in _folders_in(directory):
        try:
            path = directory / name
            is_named = path.is_file() and read_file(path, is_mapped=True).get(SHARDS) == folder.name
        except CheckpointError:  # what cannot be read may yet be saved
            continue
        if not is_named:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _folders_in(directory: Path) -> list[tuple[Path, str]]:
    """Return the folders of checkpoints in ``directory``, with the names of these.

    A link is none, and neither is a folder of the user's that is called much alike.
    """
    found = [(one, _NAME.fullmatch(one.name)) for one in directory.glob(f"*{_INFIX}*")]
    return [(one, name[1]) for one, name in found if name and one.is_dir() and not one.is_symlink()]


def _bare(name: Any) -> str:
    if not is_file_name(name):
        raise CheckpointError(f"{name!r} has to be a bare file name")
    return str(name)
