"""Sharded tensors in a folder written by ``torch.distributed.checkpoint``.

Such a checkpoint is a file, as any other, and a folder beside it. The file holds everything but the
sharded tensors, and names the folder; it is written last, so the checkpoint is whole whenever the
file is there. The folder is torch's own: ``torch.distributed.checkpoint.load`` reads it, by keys
such as ``state_dict.layers.0.weight``.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from typing_extensions import override

from mm_runner._untrusted import is_file_name
from mm_runner.errors import CheckpointError

from ._atomic import first_line
from ._unpickling import RestrictedUnpickler

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SHARDS", "SplitCheckpoint", "join_shards", "split_shards"]

# Key of the checkpoint under which it names its folder and what is in it.
SHARDS = "shards"

# What torch's metadata of a folder is made of; nothing else is built from it.
_METADATA, _FILES = (f"torch.distributed.checkpoint.{name}" for name in ("metadata", "filesystem"))
_CLASSES = {
    (_FILES, "_StorageInfo"),
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
}
_ALLOWED = {
    *_CLASSES,
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
}


class SplitCheckpoint(NamedTuple):
    """A checkpoint on one process.

    Attributes:
        rest: All but the sharded tensors, which are ``None`` in it.
        layout: For each of these its ``path`` of keys, its whole ``shape`` and its ``dtype``.
        tensors: What this process has of them, by their keys in the folder.
    """

    rest: dict[str, Any]
    layout: list[dict[str, Any]]
    tensors: dict[str, Any]


def split_shards(checkpoint: Mapping[str, Any]) -> SplitCheckpoint:
    """Split ``checkpoint`` into its sharded tensors and the rest."""
    layout: list[dict[str, Any]] = []
    tensors: dict[str, Any] = {}

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if hasattr(value, "full_tensor"):
            dtype = str(value.dtype).removeprefix("torch.")
            layout.append({"path": list(path), "shape": list(value.shape), "dtype": dtype})
            tensors[_key(path)] = value.detach()
            return None
        if not isinstance(value, Mapping):
            return value
        if not isinstance(value, OrderedDict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        state = copy.copy(value)  # with the metadata of a state_dict
        state.update((key, walk(item, (*path, key))) for key, item in value.items())
        return state

    return SplitCheckpoint(walk(checkpoint, ()), layout, tensors)


def join_shards(checkpoint: dict[str, Any], path: Path, *, outline: bool) -> None:
    """Put the sharded tensors, whole and on the CPU, into a checkpoint that was read.

    Args:
        checkpoint: Changed in place.
        path: Its file.
        outline: Leave the tensors on the device "meta", with a shape only.

    Raises:
        CheckpointError: If the folder is missing, damaged, or does not fit.
    """
    try:
        shards = checkpoint[SHARDS]
        if not outline:
            _check_sizes(path.parent / _bare(shards["folder"]), shards["tensors"])
        wholes = {_key(one["path"]): _empty(one, outline=outline) for one in shards["tensors"]}
        if not outline:
            _read(path.parent / _bare(shards["folder"]), wholes)
        for one in shards["tensors"]:
            _put(checkpoint, one["path"], wholes[_key(one["path"])])
    except CheckpointError:
        raise
    except Exception as error:  # a missing file, what is no number where one is needed, and so on
        raise CheckpointError(
            f"{path} is damaged: the folder of its sharded tensors does not fit it: "
            f"{first_line(error)}"
        ) from error


def _read(folder: Path, targets: dict[str, Any]) -> None:
    """Fill ``targets`` by torch's planner, which finds what this process needs in the files."""
    from torch.distributed.checkpoint.default_planner import (  # noqa: PLC0415 - slow to import
        DefaultLoadPlanner,
    )

    reader, planner = _reader(folder), DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(targets, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _reader(folder: Path) -> Any:
    """Return a reader that builds nothing but torch's metadata, and stays in the folder."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader  # noqa: PLC0415 - slow
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata  # noqa: PLC0415

    class Reader(FileSystemReader):
        def read_metadata(self, *_: Any, **__: Any) -> Any:
            metadata = _MetadataUnpickler(io.BytesIO((folder / ".metadata").read_bytes())).load()
            for key, entry in metadata.state_dict_metadata.items():
                if not isinstance(entry, TensorStorageMetadata):  # torch would unpickle it
                    raise CheckpointError(f"{folder}: {key} is no tensor.")
            for stored in metadata.storage_data.values():
                _bare(stored.relative_path)
            return metadata

    return Reader(folder)


class _MetadataUnpickler(RestrictedUnpickler):
    """Build torch's metadata of a folder, and nothing else."""

    dispatch: ClassVar[dict[int, Any]] = dict(RestrictedUnpickler.dispatch)

    @override
    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not (is_dtype or (module, name) in _ALLOWED):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)

    @override
    def load_build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        kind = type(target)
        if (kind.__module__, kind.__name__) not in _CLASSES:
            raise pickle.UnpicklingError(f"it sets the state of a {kind.__name__}")
        if hasattr(kind, "__setstate__"):
            target.__setstate__(state)
        else:
            vars(target).update(state)

    dispatch[pickle.BUILD[0]] = load_build


def _key(path: Any) -> str:
    return ".".join(map(str, path))


def _bare(name: Any) -> str:
    if not is_file_name(name):
        raise CheckpointError(f"{name!r} has to be a bare file name")
    return str(name)


def _empty(one: Mapping[str, Any], *, outline: bool) -> torch.Tensor:
    dtype = getattr(torch, one["dtype"])
    return torch.empty(one["shape"], dtype=dtype, device="meta" if outline else "cpu")


def _check_sizes(folder: Path, tensors: list[dict[str, Any]]) -> None:
    """Refuse shapes that the files cannot fill before memory is taken for them."""
    outlines = [_empty(one, outline=True) for one in tensors]
    declared = sum(one.numel() * one.element_size() for one in outlines)
    if declared > sum(file.stat().st_size for file in folder.iterdir()):
        raise ValueError(f"the files hold less than the {declared} bytes of the tensors")


def _put(checkpoint: dict[str, Any], path: list[Any], whole: torch.Tensor) -> None:
    holder = checkpoint
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = whole
