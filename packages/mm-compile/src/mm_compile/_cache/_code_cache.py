"""Cache of inductor's compiled code for one compiled model."""

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from mm_compile import _torch_private as torch_private
from mm_compile._failure import passing_error
from mm_compile._torch import describe_backend

from ._directory import folder_name, make_folder, refusal_of

_logger = logging.getLogger(__name__)

Compile = Callable[[], Any]


def open_cache(
    directory: Path | None, keywords: Mapping[str, Any], *, is_trusted: bool = False
) -> "CodeCache | None":
    """Return a cache in ``directory``, or None, with a warning, where it cannot be used."""
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
    return CodeCache(directory, is_trusted=is_trusted)


class CodeCache:
    """A directory of inductor's own cache files, for one ``compile_model``.

    The process changes (two environment variables, settings of inductor) only while a graph is
    compiled.
    """

    # Inductor keeps loaded code by its content, for the whole process.
    _last_folder: ClassVar[Path | None] = None

    def __init__(self, directory: Path, *, is_trusted: bool = False) -> None:
        self._directory = directory
        self._is_trusted = is_trusted
        self._is_open = False
        # None while code cannot be cached.
        self._folder: Path | None = None
        self._has_code = self._has_libraries = False

    def wrap(self, inductor: Any) -> Callable[[Any, Any], Any]:
        """Return ``inductor``, a function of a graph and inputs, compiling through the cache."""
        if torch_private.can_compile_backward_early():
            return lambda graph, inputs: self.compile(lambda: inductor(graph, inputs))
        # Backward is compiled when it first runs, and enters the cache on its own.
        return torch_private.compile_parts(inductor, self.compile)

    def compile(self, compile_graph: Compile) -> Any:
        """Compile a graph, or load it."""
        if not self._is_open:
            self._is_open = True
            self._open()
        if self._folder is None:
            return compile_graph()
        try:
            return self._compile_in(self._folder, compile_graph)
        except Exception as error:
            # Broken or unwritable files are the cache's fault.
            if not self._has_code and not isinstance(passing_error(error), OSError):
                raise
            failed = error
        return self._compile_afresh(failed, compile_graph)

    def _open(self) -> None:
        folder = self._directory / folder_name()
        refusal = None if self._is_trusted else refusal_of(self._directory, folder)
        if refusal is not None:
            _logger.warning("compile: the cache is not used: %s.", refusal)
            return
        try:
            make_folder(folder, is_shared=self._is_trusted)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:  # a full or read-only disk must not end a run
            _logger.warning("compile: the cache is not used: %s", error)
            return
        self._folder = folder
        self._has_code = any(folder.iterdir())
        self._has_libraries = any(folder.rglob("*.so"))
        state = "holds code" if self._has_code else "holds no code yet"
        _logger.info("compile: %s %s for this torch and machine.", folder, state)

    def _compile_in(self, folder: Path, compile_graph: Compile) -> Any:
        if CodeCache._last_folder != folder:
            # Otherwise code loaded from another folder would be missing in this one.
            torch_private.forget_loaded_code()
            CodeCache._last_folder = folder
        with ExitStack() as stack:
            stack.enter_context(_inductor_writes_to(folder))
            stack.enter_context(torch_private.caching_graphs())
            stack.enter_context(torch_private.remembering_probes(folder / "probes.txt"))
            if self._has_libraries:
                stack.enter_context(torch_private.without_precompiled_headers())
            return compile_graph()

    def _compile_afresh(self, error: Exception, compile_graph: Compile) -> Any:
        """Compile without cached files after ``error``, which they may have caused."""
        assert self._folder is not None
        fresh = self._make_temporary()
        compiled = self._compile_in(fresh, compile_graph)
        _logger.warning(
            "compile: code in %s cannot be used here and is compiled again: %s: %s",
            self._folder,
            type(error).__name__,
            str(error).partition("\n")[0],
        )
        try:
            shutil.rmtree(self._folder)
            shutil.copytree(fresh, self._folder)
        except OSError:
            self._folder = fresh
        return compiled

    def _make_temporary(self) -> Path:
        path = tempfile.mkdtemp(prefix="mm_compile_")
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return Path(path)


@contextmanager
def _inductor_writes_to(folder: Path) -> Iterator[None]:
    # Inductor sets the second variable from the first only once in a process.
    changed = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
