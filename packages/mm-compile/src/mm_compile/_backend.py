"""The callable that torch.compile is given: the chosen backend, counted and guarded."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from . import _torch_private as torch_private
from ._cache._code_cache import CodeCache
from ._failure import Failure, failure_of_backend, note_failure, passing_error
from ._torch import describe_backend

Compiled = Callable[..., Any]


class GuardedBackend:
    """Compiles captured graphs by a config's backend, and counts them.

    With ``catches``, a graph that the backend refuses runs as it was captured, and ``failure`` says
    so: nothing of the call runs twice. Errors that may pass, such as a lack of memory, are raised.
    """

    def __init__(
        self,
        keywords: Mapping[str, Any],
        code_cache: CodeCache | None = None,
        *,
        catches: bool,
    ) -> None:
        self._compile = _backend_function(keywords)
        if code_cache is not None:
            self._compile = code_cache.wrap(self._compile)
        # torch shows this name in messages.
        self.__name__ = describe_backend(keywords)
        self._catches = catches
        self.num_graphs = 0
        self.seconds = 0.0
        self.failure: Failure | None = None
        self.break_reasons: list[Any] = torch_private.graph_break_reasons()

    def __call__(self, graph_module: Any, example_inputs: Any) -> Any:
        """Compile one graph, as dynamo asks for it."""
        self.num_graphs += 1
        began = perf_counter()
        # A backward compiled when it runs would fail where no region can catch the error.
        early = torch_private.backward_compiled_early() if self._catches else nullcontext()
        try:
            with early:
                return self._compile(graph_module, example_inputs)
        except Exception as error:
            if self._catches and passing_error(error) is None:
                return self._refused(graph_module, failure_of_backend(error, graph_module))
            note_failure(error, graph_module)
            raise
        finally:
            self.seconds += perf_counter() - began

    def _refused(self, graph_module: Any, failure: Failure) -> Compiled:
        self.failure = failure

        def run(*args: Any) -> Any:
            # Another region that shares the code may run this graph without compiling.
            self.failure = failure
            return graph_module.forward(*args)

        return run


def _backend_function(keywords: Mapping[str, Any]) -> Compiled:
    if keywords.get("backend", "inductor") == "inductor":
        compiled: Compiled = torch_private.inductor_backend(
            keywords.get("mode"), keywords.get("options"), dynamic=keywords.get("dynamic")
        )
        return compiled
    backend = keywords["backend"]
    function = torch_private.lookup_backend(backend) if isinstance(backend, str) else backend
    options = {name: keywords.get(name) for name in ("mode", "options")}
    rest = {name: value for name, value in options.items() if value not in (None, "default", {})}
    return lambda graph_module, inputs: function(graph_module, inputs, **rest)
