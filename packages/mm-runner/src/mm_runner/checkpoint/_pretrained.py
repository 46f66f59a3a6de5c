"""Weights that other libraries wrote: safetensors files and Hugging Face directories."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mm_runner._untrusted import is_file_name
from mm_runner.errors import CheckpointError, import_extra

from ._content import first_line
from ._reading import damaged, read_file

_SUFFIX = ".safetensors"
# What a directory may hold, the preferred first; each may be an index of several files.
_NAMES = ("model.safetensors", "pytorch_model.bin")


def read_pretrained(path: Path) -> dict[str, Any] | None:
    """Read weights from a safetensors file or a Hugging Face directory, as ``{"state_dict": ...}``.

    No code in the files is run. Files of other formats give ``None``.

    Raises:
        CheckpointError: If a file is missing or damaged.
        ConfigError: If safetensors is not installed.
    """
    # is_dir() and is_file() raise if the name is too long.
    if os.path.isdir(path):  # noqa: PTH112
        files = _files_in(path)
    elif path.suffix == _SUFFIX and os.path.isfile(path):  # noqa: PTH113
        files = [path]
    else:
        return None
    weights: dict[str, Any] = {}
    for file in files:
        weights |= _read(file)
    return {"state_dict": weights}


def _files_in(directory: Path) -> list[Path]:
    """Return the files of a directory's weights, the shards of an index each once."""
    for name in _NAMES:
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if not index.is_file():
            continue
        try:
            shards = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise damaged(index, error) from error
        wrong = [one for one in shards if not (is_file_name(one) and (directory / one).is_file())]
        if wrong:
            raise CheckpointError(
                f"{index} is damaged: it names {wrong[0]!r:.300}; files beside it are needed."
            )
        return [directory / shard for shard in shards]
    found = ", ".join(sorted(one.name for one in directory.iterdir())[:20]) or "nothing"
    raise CheckpointError(
        f"The checkpoint {directory} was asked for; the directory has {found}. Needed is "
        f"{' or '.join(_NAMES)}, or the index of one of them; or name a file."
    )


def _read(file: Path) -> dict[str, Any]:
    if file.suffix != _SUFFIX:
        return read_file(file)
    safetensors = import_extra("safetensors.torch", "hf", str(file))
    try:
        weights: dict[str, Any] = safetensors.load_file(str(file))
    except Exception as error:  # its reader has errors of its own
        raise CheckpointError(f"{file} is damaged: {first_line(error)}.") from error
    return weights
