"""The callable that torch.compile is given: the chosen backend, counted and guarded."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from ._backend_keywords import extra, lookup
from ._cache._code_cache import CodeCache
from ._failure import Failure, failure_of_backend, note_failure, passing_error
from ._inductor_import import import_inductor
from ._receipt._breaks import break_reason_of, dynamo_break_reasons
from ._surroundings import HookGuards
from ._torch import describe_backend, torch_version

Compiled = Callable[..., Any]


class GuardedBackend:
    """Compiles captured graphs by the backend of a config, and counts them.

    With ``catches``, a graph that the backend refuses is run as it was captured, so that the call
    which needed it goes on where it was: nothing of it runs twice. ``failure`` then says so. Errors
    that may pass, such as a lack of memory, are raised all the same.

    Attributes:
        num_graphs: Graphs handed to the backend so far, refused ones included.
        num_runs: Compiled graphs run so far; counted only with ``counts_runs``.
        failure: Set whenever a refused graph runs; whoever reads it sets it back to None.
        break_reasons: What dynamo says of every graph break; where it can, of the whole process.
    """

    def __init__(
        self,
        keywords: Mapping[str, Any],
        *,
        dynamic: bool | None,
        catches: bool,
        counts_runs: bool,
        code_cache: CodeCache | None = None,
        hook_guards: HookGuards | None = None,
    ) -> None:
        self._compile: Compiled = _backend_function(keywords, dynamic=dynamic)
        if code_cache is not None:
            self._compile = code_cache.wrap(self._compile)
        # torch names a backend so in its own messages.
        self.__name__ = describe_backend(keywords)
        self._catches = catches
        self._counts_runs = counts_runs
        self._hook_guards = hook_guards
        self.num_graphs = 0
        self.num_runs = 0
        self.failure: Failure | None = None
        reasons = dynamo_break_reasons()
        self._collects_breaks = reasons is None
        self.break_reasons: list[Any] = [] if reasons is None else reasons

    def __call__(self, graph_module: Any, example_inputs: Any) -> Any:
        """Compile one graph, as dynamo asks for it."""
        self.num_graphs += 1
        if self._hook_guards is not None:
            self._hook_guards.begin()
        if self._collects_breaks:
            self.break_reasons += break_reason_of(graph_module)
        if self.__name__ == "inductor":
            import_inductor()
        if not self._catches:
            try:
                return self._compile(graph_module, example_inputs)
            except Exception as error:
                note_failure(error, graph_module)
                raise
        try:
            with _backward_compiled_now():
                compiled = self._compile(graph_module, example_inputs)
        except Exception as error:
            if passing_error(error) is not None:
                raise
            return self._refused(graph_module, failure_of_backend(error, graph_module))
        return self._counted(compiled) if self._counts_runs else compiled

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
            # Code is shared: another region may run into this graph without compiling anything.
            self.failure = failure
            self.num_runs += 1
            return graph_module.forward(*args)

        return run

    def _counted(self, compiled: Compiled) -> Compiled:
        def run(*args: Any) -> Any:
            self.num_runs += 1
            return compiled(*args)

        return run


def _backend_function(keywords: Mapping[str, Any], *, dynamic: bool | None) -> Compiled:
    backend = keywords.get("backend", "inductor")
    mode, options = keywords.get("mode"), keywords.get("options")
    if backend == "inductor":
        # What torch.compile makes of the name: the one place where mode and options are applied.
        wrapper: Any = torch._TorchCompileInductorWrapper  # noqa: SLF001
        compiled: Compiled = wrapper(mode or "default" if not options else None, options, dynamic)
        return compiled
    function, rest = lookup(keywords), extra(keywords)
    return lambda graph_module, inputs: function(graph_module, inputs, **rest)


def _backward_compiled_now() -> AbstractContextManager[object]:
    # torch compiles a backward when it first runs, where no region could catch an error.
    from torch._functorch import config  # noqa: PLC0415 - loaded only to compile

    if hasattr(config, "force_non_lazy_backward_lowering"):
        patched: AbstractContextManager[object] = config.patch(
            force_non_lazy_backward_lowering=True
        )
        return patched
    return nullcontext()
