"""A directory of compiled code that outlives the process, and moves to other machines."""

import logging
import weakref
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from mm_compile._torch import describe_backend

from ._directory import can_only_be_read, refusal_of
from ._graph import device_types_of, has_collectives, mark_of
from ._inductor import (
    compile_parts,
    compiles_backward_at_once,
    compiling_communicates,
    is_disabled,
    without_precompiled_headers,
)
from ._key import find_key
from ._shelf import Shelf
from ._turn import turn

_logger = logging.getLogger(__name__)

Compile = Callable[[], Any]


def open_cache(
    directory: Path | None, keywords: Mapping[str, Any], *, is_trusted: bool = False
) -> "CodeCache | None":
    """Return a cache in ``directory``, or None where nothing is asked for or nothing can be kept.

    Args:
        directory: The directory of the config.
        keywords: The arguments of ``torch.compile``.
        is_trusted: Whether code is taken from whoever can write there.
    """
    if directory is None:
        return None
    backend = describe_backend(keywords)
    if backend != "inductor":
        _logger.warning(
            "compile: cache=%r keeps what inductor compiles; backend %r has nothing to keep.",
            str(directory),
            backend,
        )
        return None
    if is_disabled():
        _logger.warning(
            "compile: nothing is kept in %s, since inductor's caches are disabled "
            "(TORCHINDUCTOR_FORCE_DISABLE_CACHES).",
            directory,
        )
        return None
    refusal = None if is_trusted else refusal_of(directory)
    if refusal is not None:
        _logger.warning("compile: the cache is not used: %s.", refusal)
        return None
    if can_only_be_read(directory):
        _logger.warning(
            "compile: %s can only be read: what it holds is used, and nothing is kept there.",
            directory,
        )
    return CodeCache(directory, keywords, is_trusted=is_trusted)


class CodeCache:
    """What one ``compile_model`` keeps of inductor's work, under a directory.

    Everything else about the cache is private to it: it changes the process (an environment
    variable, settings of inductor) only while a graph is being compiled.

    Args:
        directory: The directory of the config; created when something is written.
        keywords: The arguments of ``torch.compile``.
        is_trusted: Whether code is taken from whoever can write there.
    """

    def __init__(
        self, directory: Path, keywords: Mapping[str, Any], *, is_trusted: bool = False
    ) -> None:
        self._directory = directory
        self._is_trusted = is_trusted
        self._keywords = dict(keywords)
        self._is_writable = not can_only_be_read(directory)
        self._shelves: dict[frozenset[str], Shelf | None] = {}
        # Also at the end of the process.
        weakref.finalize(self, _close_all, self._shelves)

    def wrap(self, inductor: Any) -> Callable[[Any, Any], Any]:
        """Return ``inductor(graph_module, inputs)`` as one that compiles through this cache.

        Args:
            inductor: What ``torch.compile`` makes of the backend's name, mode and options.
        """
        if compiles_backward_at_once():
            return lambda graph, inputs: self.compile(
                graph, inputs, lambda: inductor(graph, inputs)
            )
        # Backward is compiled when it first runs: it gets a turn of its own then.
        compile_graph = compile_parts(inductor, self.compile)
        return lambda graph, inputs: self._enter(graph, inputs, compile_graph)

    def compile(self, graph_module: Any, inputs: Any, compile_graph: Compile) -> Any:
        """Compile a graph, or load it; the first process of a machine, before the others."""
        shelf = self._shelf(device_types_of(graph_module, inputs))
        if shelf is None or has_collectives(graph_module) or compiling_communicates():
            # Ranks may compile together then: none may wait for another one, and none may load
            # while others compile.
            return compile_graph()
        mark = mark_of(graph_module, inputs)
        if mark not in shelf.marks:
            if not shelf.is_writable:  # nobody would have anything of it to wait for another one
                return _compile_cold(shelf, mark, compile_graph)
            with turn(f"{shelf.folder.resolve()}/{mark}"):
                shelf.refresh()
                if mark not in shelf.marks:
                    return _compile_cold(shelf, mark, compile_graph)
        return _load(shelf, mark, compile_graph)

    def _enter(self, graph_module: Any, inputs: Any, compile_graph: Callable[..., Any]) -> Any:
        shelf = self._shelf(device_types_of(graph_module, inputs))
        with nullcontext() if shelf is None else shelf.entered():
            return compile_graph(graph_module, inputs)

    def close(self) -> None:
        """Keep what was written since (results of autotuning), and remove temporary files."""
        _close_all(self._shelves)

    def _shelf(self, device_types: frozenset[str]) -> Shelf | None:
        if device_types not in self._shelves:
            key = find_key(device_types, self._keywords)
            try:
                self._shelves[device_types] = Shelf(
                    self._directory,
                    key,
                    is_writable=self._is_writable,
                    is_trusted=self._is_trusted,
                )
            except OSError as error:  # a full disk must not end a run
                _logger.warning("compile: the cache is not used: %s", error)
                self._shelves[device_types] = None
        return self._shelves[device_types]


def _close_all(shelves: dict[frozenset[str], Shelf | None]) -> None:
    for shelf in shelves.values():
        if shelf is not None:
            shelf.close()
    shelves.clear()


def _compile_cold(shelf: Shelf, mark: str, compile_graph: Compile) -> Any:
    with shelf.entered():
        compiled = compile_graph()
    shelf.publish(mark)
    return compiled


def _load(shelf: Shelf, mark: str, compile_graph: Compile) -> Any:
    try:
        with shelf.entered(), without_precompiled_headers():
            compiled = compile_graph()
    except Exception as error:  # noqa: BLE001 - what was compiled elsewhere may fail in any way
        shelf.start_anew(error)
        return _compile_cold(shelf, mark, compile_graph)
    shelf.note_use(mark)
    # If inductor found none for settings that the mark does not tell, both are kept.
    shelf.publish(None)
    return compiled
