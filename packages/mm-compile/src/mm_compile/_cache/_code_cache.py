"""Cache of inductor's compiled code for one compiled model."""

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from mm_compile import _torch_private as torch_private
from mm_compile._torch import describe_backend

from ._directory import is_read_only, refusal_of
from ._key import folder_name
from ._workspace import Workspace

_logger = logging.getLogger(__name__)
# A large model's code is some ten megabytes.
MAX_BYTES = 4 * 2**30
# A writer that takes longer was killed.
_STALE_S = 3600.0

Compile = Callable[[], Any]


def open_cache(
    directory: Path | None, keywords: Mapping[str, Any], *, is_trusted: bool = False
) -> "CodeCache | None":
    """Return a cache in ``directory``, or None, with a warning, where it cannot be used.

    Args:
        directory: The config's directory; None for no cache.
        keywords: The arguments of ``torch.compile``.
        is_trusted: Whether to run code that other users can write.
    """
    if directory is None:
        return None
    backend = describe_backend(keywords)
    if backend != "inductor":
        _logger.warning(
            "compile: cache=%r has no effect: it stores inductor's code, and backend %r has "
            "nothing to store.",
            str(directory),
            backend,
        )
        return None
    refusal = None if is_trusted else refusal_of(directory)
    if refusal is not None:
        _logger.warning("compile: the cache is not used: %s.", refusal)
        return None
    if is_read_only(directory):
        _logger.warning(
            "compile: %s is read-only: cached code is used, new code is not saved.", directory
        )
    return CodeCache(directory, is_trusted=is_trusted)


class CodeCache:
    """Inductor's own cache files in a directory, for one ``compile_model``.

    The process changes (two environment variables, settings of inductor) only while a graph is
    compiled.

    Args:
        directory: The config's directory; created when code is saved.
        is_trusted: Whether to run code that other users can write.
    """

    # Inductor keeps loaded code by its content, for the whole process.
    last_workspace: ClassVar[Path | None] = None

    def __init__(self, directory: Path, *, is_trusted: bool = False) -> None:
        self._directory = directory
        self._is_trusted = is_trusted
        self._folder: Path | None = None
        self._workspaces: list[Workspace] = []
        # Also at the end of the process.
        weakref.finalize(self, _close_all, self._workspaces)

    def wrap(self, inductor: Any) -> Callable[[Any, Any], Any]:
        """Return ``inductor(graph_module, inputs)`` as a function that compiles through the cache.

        Args:
            inductor: What ``torch.compile`` makes of the backend's name, mode and options.
        """
        if torch_private.can_compile_backward_early():
            return lambda graph, inputs: self.compile(
                graph, inputs, lambda: inductor(graph, inputs)
            )
        # Backward is compiled when it first runs, and enters the cache on its own.
        return torch_private.compile_parts(inductor, self.compile)

    def compile(self, graph_module: Any, inputs: Any, compile_graph: Compile) -> Any:
        """Compile a graph, or load it."""
        if self._folder is None:
            self._open(graph_module, inputs)
        if not self._workspaces:
            return compile_graph()
        workspace = self._workspaces[-1]
        try:
            compiled = _compile_in(workspace, compile_graph)
        except Exception as error:
            if not workspace.has_code:
                raise
            compiled = self._compile_afresh(error, compile_graph)
        self._workspaces[-1].save()
        return compiled

    def close(self) -> None:
        """Save what was written since (results of autotuning), and remove temporary files."""
        _close_all(self._workspaces)
        self._folder = None

    def _open(self, graph_module: Any, inputs: Iterable[Any]) -> None:
        tensors = [*graph_module.parameters(), *inputs]
        kinds = {each.device.type for each in tensors if isinstance(each, Tensor)}
        self._folder = folder = self._directory / folder_name(kinds)
        refusal = None if self._is_trusted else refusal_of(self._directory, folder)
        if refusal is not None:
            _logger.warning("compile: the cache is not used: %s.", refusal)
            return
        try:
            workspace = self._make_workspace()
        except OSError as error:  # a full disk must not end a run
            _logger.warning("compile: the cache is not used: %s", error)
            return
        self._workspaces.append(workspace)
        state = "holds code" if workspace.has_code else "holds no code yet"
        _logger.info("compile: %s %s for this torch and machine.", folder, state)
        if workspace.is_writable:
            prune(self._directory)

    def _make_workspace(self, *, is_empty: bool = False) -> Workspace:
        assert self._folder is not None
        return Workspace(
            self._folder,
            is_writable=not is_read_only(self._directory),
            is_shared=self._is_trusted,
            is_empty=is_empty,
        )

    def _compile_afresh(self, error: Exception, compile_graph: Compile) -> Any:
        """Compile without cached files after ``error``, which they may have caused."""
        fresh = self._make_workspace(is_empty=True)
        try:
            compiled = _compile_in(fresh, compile_graph)
        except Exception:
            fresh.remove()
            raise
        _logger.warning(
            "compile: code in %s cannot be used here and is compiled again: %s: %s",
            self._folder,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        self._workspaces[-1].discard_cached()
        self._workspaces.append(fresh)
        return compiled


def prune(directory: Path, max_bytes: int = MAX_BYTES) -> None:
    """Remove incomplete files, and the oldest ones until the rest is within ``max_bytes``."""
    size, found = 0, []
    for path in directory.rglob("*"):
        with suppress(OSError):  # another job prunes too
            state = path.stat()
            if path.is_file():
                # Those that killed writers have left go first.
                is_stale = path.suffix == ".tmp" and time.time() - state.st_mtime > _STALE_S
                found.append((not is_stale, state.st_mtime, state.st_size, path))
                size += state.st_size
    for is_complete, _, file_size, path in sorted(found):
        if is_complete and size <= max_bytes:
            return
        with suppress(OSError):
            path.unlink()
        size -= file_size


def _compile_in(workspace: Workspace, compile_graph: Compile) -> Any:
    if CodeCache.last_workspace != workspace.path:
        # Otherwise code loaded from another folder would be missing in this one.
        torch_private.forget_loaded_code()
        CodeCache.last_workspace = workspace.path
    with ExitStack() as stack:
        stack.enter_context(workspace.entered())
        stack.enter_context(torch_private.caching_graphs())
        stack.enter_context(torch_private.remembering_probes(workspace.path / "probes.txt"))
        if workspace.has_libraries:
            stack.enter_context(torch_private.without_precompiled_headers())
        try:
            return compile_graph()
        except (KeyboardInterrupt, SystemExit):
            # A compiler that inductor started may still be writing.
            workspace.is_writable = False
            raise


def _close_all(workspaces: list[Workspace]) -> None:
    for workspace in workspaces:
        workspace.save()
        workspace.remove()
    workspaces.clear()
