"""The callable that torch.compile is given: the chosen backend, counted and guarded."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from time import perf_counter
from typing import Any

from . import _torch_private as torch_private
from ._cache._code_cache import CodeCache
from ._failure import Failure, failure_of_backend, note_failure, passing_error
from ._torch import describe_backend, torch_version

Compiled = Callable[..., Any]
# torch.compile's arguments for inductor, which few other backends take.
_OPTIONAL = ("mode", "options")


def unsupported_keywords(keywords: Mapping[str, Any]) -> list[str]:
    """Return those of ``mode`` and ``options`` that are set and the backend does not take."""
    given = _optional_keywords(keywords)
    if not given or keywords.get("backend", "inductor") == "inductor":
        return []
    function = _lookup(keywords)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C
        return []
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    # torch's own accept them and ignore them.
    is_of_torch = str(getattr(function, "__module__", "")).startswith("torch._dynamo.")
    if takes_any and not is_of_torch:
        return []
    return [name for name in given if name not in parameters]


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
        reasons = torch_private.graph_break_reasons()
        self._collects_breaks = reasons is None
        self.break_reasons: list[Any] = [] if reasons is None else reasons

    def __call__(self, graph_module: Any, example_inputs: Any) -> Any:
        """Compile one graph, as dynamo asks for it."""
        self.num_graphs += 1
        began = perf_counter()
        if self._collects_breaks:
            # What ended the graph is all that torch 2.0 reports.
            reason = getattr(graph_module, "compile_subgraph_reason", None)
            if reason is not None and reason.reason != "return_value":
                self.break_reasons.append(reason)
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

    def __eq__(self, other: object) -> bool:
        # torch 2.0 warns whenever two backends take turns; no code of ours is shared by two.
        if torch_version() < (2, 1) and isinstance(other, GuardedBackend):
            return True
        return self is other

    def __hash__(self) -> int:
        return id(self)

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
    function = _lookup(keywords)
    rest = {name: keywords[name] for name in _optional_keywords(keywords)}
    return lambda graph_module, inputs: function(graph_module, inputs, **rest)


def _lookup(keywords: Mapping[str, Any]) -> Any:
    backend = keywords["backend"]
    return torch_private.lookup_backend(backend) if isinstance(backend, str) else backend


def _optional_keywords(keywords: Mapping[str, Any]) -> list[str]:
    return [name for name in _OPTIONAL if keywords.get(name) not in (None, "default", {})]
