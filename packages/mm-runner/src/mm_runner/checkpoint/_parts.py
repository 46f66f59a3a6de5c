"""A checkpoint of which every process writes the part that it holds.

Tensors that are spread over the processes are not gathered: each process writes what it has of them
to a file of its own, in a folder beside the checkpoint. The checkpoint itself is written last. It
holds everything else, and says which folder and which files belong to it; so it is whole whenever
it is there, and one of the same name that it replaces stays whole until then. All of these are
files of tensors and primitives.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mm_runner._untrusted import is_file_name
from mm_runner.errors import CheckpointError

from ._atomic import first_line

__all__ = ["PARTS", "SplitCheckpoint", "join_parts", "split_parts"]

# Key of the checkpoint under which it names its folder and files, and what is in them.
PARTS = "parts"


class SplitCheckpoint(NamedTuple):
    """A checkpoint on one process.

    Attributes:
        rest: All but the tensors that are spread over the processes, which are ``None`` in it.
        layout: For each of these its ``path`` of keys, its whole ``shape`` and its ``dtype``.
        chunks: What this process has of them, by index: the block ``values`` that begins at
            ``offsets``. Empty blocks, and those that another process writes, are left out.
    """

    rest: dict[str, Any]
    layout: list[dict[str, Any]]
    chunks: dict[int, dict[str, Any]]


def split_parts(checkpoint: Mapping[str, Any]) -> SplitCheckpoint:
    """Part ``checkpoint`` into what this process has of spread tensors, and the rest."""
    layout: list[dict[str, Any]] = []
    chunks: dict[int, dict[str, Any]] = {}

    def walk(value: Any, path: tuple[Any, ...]) -> Any:
        if hasattr(value, "full_tensor"):
            chunk = _own_chunk(value)
            if chunk is not None:
                chunks[len(layout)] = chunk
            dtype = str(value.dtype).removeprefix("torch.")
            layout.append({"path": list(path), "shape": list(value.shape), "dtype": dtype})
            return None
        if not isinstance(value, Mapping):
            return value
        if not isinstance(value, OrderedDict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        state = copy.copy(value)  # with the metadata of a state_dict
        state.update((key, walk(item, (*path, key))) for key, item in value.items())
        return state

    return SplitCheckpoint(walk(checkpoint, ()), layout, chunks)


def _own_chunk(value: Any) -> dict[str, Any] | None:
    """Return this process's block of a ``DTensor``, unless there is none for it to write."""
    place = value.device_mesh.get_coordinate()
    if place is None or any(
        placement.is_replicate() and index
        for placement, index in zip(value.placements, place, strict=True)
    ):
        return None  # the first of the copies writes it
    local = value.to_local().detach()
    if not local.numel():
        return None
    (chunk,) = value.__create_chunk_list__()
    return {"offsets": list(chunk.offsets), "values": local}


def join_parts(
    checkpoint: dict[str, Any], path: Path, read: Callable[[Path], Mapping[str, Any]] | None
) -> None:
    """Put the spread tensors, whole and on the CPU, into a checkpoint that was read.

    Args:
        checkpoint: Changed in place; the entry :data:`PARTS` is taken out.
        path: Its file.
        read: Reads one part, its checksums compared; without it the tensors have a shape only.

    Raises:
        CheckpointError: If a part is missing, damaged, or does not fit.
    """
    parts = checkpoint.pop(PARTS)
    try:
        wholes = [_empty(one, "meta" if read is None else "cpu") for one in parts["tensors"]]
        missing = [0 if read is None else whole.numel() for whole in wholes]
        for name in parts["files"]:
            if read is None:
                break
            content = read(path.parent / _bare(parts["folder"]) / _bare(name))
            for index, chunk in content["chunks"].items():
                values = chunk["values"]
                block = zip(chunk["offsets"], values.shape, strict=True)
                wholes[index][tuple(slice(begin, begin + size) for begin, size in block)] = values
                missing[index] -= values.numel()
        for one, whole in zip(parts["tensors"], wholes, strict=True):
            _put(checkpoint, one["path"], whole)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is in parts, and one cannot be read: {error}") from error
    except Exception as error:  # what is not a number where one is needed, and so on
        raise CheckpointError(
            f"{path} is damaged: its parts do not fit it: {first_line(error)}"
        ) from error
    if any(missing):
        lacking = sum(map(bool, missing))
        raise CheckpointError(f"{path} is damaged: its parts lack values of {lacking} tensors.")


def _bare(name: Any) -> str:
    if not is_file_name(name):
        raise ValueError(f"{name!r} has to be a bare file name")
    return str(name)


def _empty(one: Mapping[str, Any], device: str) -> torch.Tensor:
    dtype = getattr(torch, one["dtype"])
    return torch.empty(one["shape"], dtype=dtype, device=device)


def _put(checkpoint: dict[str, Any], path: list[Any], whole: torch.Tensor) -> None:
    holder = checkpoint
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = whole
