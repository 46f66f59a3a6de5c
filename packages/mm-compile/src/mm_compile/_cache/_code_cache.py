"""Cache of inductor's compiled code for one compiled model."""

import logging
import os
import shutil
import tempfile
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


def open_cache(directory: Path | None, keywords: Mapping[str, Any]) -> "CodeCache | None":
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
    folder = directory / folder_name()
    refusal = refusal_of(directory, folder)
    if refusal is None:
        try:
            make_folder(folder)
            tempfile.TemporaryFile(dir=folder).close()
            return CodeCache(folder)
        except OSError as error:  # a full or read-only disk must not end a run
            refusal = str(error)
    _logger.warning("compile: the cache is not used: %s.", refusal)
    return None


class CodeCache:
    """A directory of inductor's own cache files, for one ``compile_model``.

    The process changes (two environment variables, settings of inductor) only while a graph is
    compiled.
    """

    # Inductor keeps loaded code by its content, for the whole process.
    _last_folder: ClassVar[Path | None] = None

    def __init__(self, folder: Path) -> None:
        self._folder: Path | None = folder  # None after code in it did not load
        self._has_code = any(folder.iterdir())
        self._has_libraries = any(folder.rglob("*.so"))
        state = "holds code" if self._has_code else "holds no code yet"
        _logger.info("compile: %s %s for this torch and machine.", folder, state)

    def wrap(self, inductor: Any) -> Callable[[Any, Any], Any]:
        """Return ``inductor``, a function of a graph and inputs, compiling through the cache."""
        if torch_private.can_compile_backward_early():
            probing = torch_private.probing_meanwhile(inductor)
            return lambda graph, inputs: self.compile(lambda: probing(graph, inputs))
        # Backward is compiled when it first runs, and enters the cache on its own.
        return torch_private.compile_parts(inductor, self.compile)

    def compile(self, compile_graph: Compile) -> Any:
        """Compile a graph, or load it."""
        if self._folder is None:
            return compile_graph()
        try:
            return self._compile_in(self._folder, compile_graph)
        except Exception as error:
            # Broken or unwritable files are the cache's fault.
            if not self._has_code and not isinstance(passing_error(error), OSError):
                raise
            failed = error
        compiled = compile_graph()  # raises if the cache is not at fault
        _logger.warning(
            "compile: code in %s cannot be used here and is removed; this run compiles without a "
            "cache: %s: %s",
            self._folder,
            type(failed).__name__,
            str(failed).partition("\n")[0],
        )
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = CodeCache._last_folder = None
        return compiled

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
