"""Private names of torch that this package uses, each with what happens without it.

Nothing here imports ``torch._dynamo`` or ``torch._inductor`` at module level. Three functions of
torch are replaced while a graph is compiled through a cache, for the processor time that they cost
(a warm start of a transformer of 8 blocks takes 4.7 s; torch with its own directory kept, 6.7 s).
"""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import copy_context
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# Without it, a forward that activation checkpointing repeats counts as a step of its own.
_graph_task_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001
# Some torch versions write a function's argument as L['self'].
_LOCAL = re.compile(r"L\['(?P<name>\w+)'\]")
# Some of dynamo's guards are long lists.
_MAX_GUARD = 120
# Dynamo keeps 8 versions of a function by default.
_DEFAULT_VERSION_LIMIT = 8


def _find(module: str, name: str, default: Any = None) -> Any:
    try:
        return getattr(import_module(module), name, default)
    except ImportError:
        return default


def is_in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread."""
    return _graph_task_id() != -1


def is_made_by_torch_compile(module: nn.Module) -> bool:
    """Whether ``torch.compile`` made this module. Without the name: False."""
    kind = _find("torch._dynamo.eval_frame", "OptimizedModule")
    return kind is not None and isinstance(module, kind)


def is_compiled_by_module(module: nn.Module) -> bool:
    """Whether ``module.compile()`` was called. Without the name: False."""
    return getattr(module, "_compiled_call_impl", None) is not None


def buffer_tables(module: nn.Module) -> list[dict[str, Any]]:
    """Return the dicts that hold the buffers of a module and its submodules.

    Without the name: none, a buffer that a forward replaces stays replaced.
    """
    tables = [getattr(part, "_buffers", None) for part in module.modules()]
    return [table for table in tables if table is not None]


def preserved_version(tensor: torch.Tensor) -> Any:
    """Return a context in which writing ``tensor`` does not invalidate saved graphs.

    Without the name: autograd refuses a backward through a value that was written back.
    """
    preserve = getattr(torch.autograd, "_unsafe_preserve_version_counter", None)
    return nullcontext() if preserve is None else preserve(tensor)


def default_store() -> Any:
    """Return the store of the process group; None without several ranks.

    Without the name: None, ranks do not learn of each other's fallbacks.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def active_ddp() -> DistributedDataParallel | None:
    """Return the DDP wrapper whose forward runs now. Without the name: None."""
    wrapper: DistributedDataParallel | None = getattr(
        DistributedDataParallel, "_active_ddp_module", None
    )
    return wrapper


def version_limit() -> int:
    """Return how many versions of one function dynamo keeps before it runs it eagerly."""
    config = import_module("torch._dynamo.config")
    # Newer versions call it recompile_limit.
    limit = getattr(config, "cache_size_limit", None) or getattr(config, "recompile_limit", None)
    return int(limit or _DEFAULT_VERSION_LIMIT)


def is_of_dynamo(error: Exception) -> bool:
    """Whether dynamo raised ``error`` while it captured code. Without the names: False."""
    names = ["TorchDynamoException", "FailOnRecompileLimitHit"]
    found = [_find("torch._dynamo.exc", name) for name in names]
    # torch 2.0 raises its own assertions unchanged, newer ones with the captured stack.
    assertion = [AssertionError] if torch.__version__.startswith("2.0.") else []
    return isinstance(error, (*filter(None, found), *assertion)) or hasattr(error, "real_stack")


def is_user_error(error: Exception) -> bool:
    """Whether eager code would most likely fail too: shapes that do not fit, for example."""
    kind = _find("torch._dynamo.exc", "TorchRuntimeError")
    return isinstance(error, (*filter(None, [kind]), AssertionError, IndexError))


def lookup_backend(name: str) -> Any:
    """Return a backend's function by its name."""
    lookup = _find("torch._dynamo.backends.registry", "lookup_backend")
    if lookup is None:
        raise RuntimeError(
            f"this torch does not look up backends: give the function of {name!r} as backend"
        )
    return lookup(name)


def backend_names() -> list[str] | None:
    """Return every backend known to dynamo. Without the name: None, any name is looked up."""
    list_backends = _find("torch._dynamo", "list_backends")
    if list_backends is None:
        return None
    return [name for name in list_backends(()) if not name.endswith("_TESTING_ONLY")]


def graph_break_reasons() -> list[Any]:
    """Return dynamo's list of graph breaks. Without the name (torch 2.0): an empty one."""
    reasons: list[Any] = _find("torch._dynamo.utils", "graph_break_reasons", [])
    return reasons


def last_recompile_reason() -> str:
    """Return the guard that failed before the last recompilation, as torch describes it.

    Without the name: a sentence that says how to log it.
    """
    list_metrics = _find("torch._dynamo.utils", "get_compilation_metrics", list)
    reason = getattr((list_metrics() or [None])[-1], "recompile_reason", None)
    if not reason:
        return "this torch does not report it; TORCH_LOGS=recompiles logs it"
    # A guard stands between its number and the line of code that reads the value.
    guard = str(reason).partition(": ")[2].partition("\n")[0].partition("  #")[0].strip()
    return _LOCAL.sub(r"\g<name>", guard)[:_MAX_GUARD]


def guard_hooks() -> None:
    """Make dynamo check the hooks of modules before it runs compiled code.

    Otherwise a hook that is registered later on a module in a region is not called. Without the
    name: it is not.
    """
    config = import_module("torch._dynamo.config")
    if hasattr(config, "skip_nnmodule_hook_guards"):
        config.skip_nnmodule_hook_guards = False  # type: ignore[attr-defined]


def inductor_backend(
    mode: str | None, options: dict[str, Any] | None, *, dynamic: bool | None
) -> Any:
    """Return what ``torch.compile`` makes of inductor, a mode and options.

    Without the name: inductor with its options unchecked.
    """
    wrapper = getattr(torch, "_TorchCompileInductorWrapper", None)
    if wrapper is not None:
        return wrapper(mode or "default" if not options else None, options, dynamic)
    inductor = import_module("torch._inductor")
    patches = options or inductor.list_mode_options(mode or "default")
    return lambda graph, inputs: inductor.compile(graph, inputs, options=patches)


def inductor_modes() -> tuple[str, ...]:
    """Return inductor's modes. Without the name: those of torch 2.0."""
    list_modes = _find("torch._inductor", "list_mode_options")
    return tuple(list_modes()) if list_modes else ("default", "reduce-overhead", "max-autotune")


def inductor_options() -> tuple[str, ...] | None:
    """Return inductor's options. Without the name: None, options are not checked."""
    list_options = _find("torch._inductor", "list_options")
    # torch.compile reads the last two itself and lists them nowhere.
    return (*list_options(), "guard_filter_fn", "use_aoti") if list_options else None


def has_code_generator(device_type: str) -> bool:
    """Whether inductor writes code for a kind of device. Without the names: False."""
    common = "torch._inductor.codegen.common"
    # Others register when they are imported: torch_npu, for example.
    _find(common, "init_backend_registration", lambda: None)()
    find = _find(common, "get_scheduling_for_device", lambda _: None)
    return find(device_type) is not None


def can_compile_backward_early() -> bool:
    """Whether torch can compile a backward together with its forward (2.7 and newer)."""
    return hasattr(import_module("torch._functorch.config"), "force_non_lazy_backward_lowering")


def backward_compiled_early() -> Any:
    """Return a context in which a backward is compiled with its forward, where torch can."""
    if not can_compile_backward_early():
        return nullcontext()
    config: Any = import_module("torch._functorch.config")
    return config.patch(force_non_lazy_backward_lowering=True)


def compile_parts(
    wrapper: Any, around: Callable[[Callable[[], Any]], Any]
) -> Callable[[Any, Any], Any]:
    """Return inductor with ``around(compile)`` called for every graph, forward or backward."""
    compile_fx: Any = import_module("torch._inductor.compile_fx")

    def compile_part(graph_module: Any, inputs: Any, **keywords: Any) -> Any:
        return around(lambda: compile_fx.compile_fx_inner(graph_module, inputs, **keywords))

    return lambda graph_module, inputs: compile_fx.compile_fx(
        graph_module, inputs, inner_compile=compile_part, config_patches=wrapper.config
    )


@contextmanager
def caching_graphs() -> Iterator[None]:
    """Make inductor cache graphs, with names that do not depend on its folder."""
    config: Any = import_module("torch._inductor.config")
    with ExitStack() as stack:
        if hasattr(config, "fx_graph_cache"):
            stack.enter_context(config.patch(fx_graph_cache=True))
        stack.enter_context(backward_compiled_early())
        stack.enter_context(_header_of_torch())
        yield


def forget_loaded_code() -> None:
    """Make inductor forget loaded code, so that it writes it to another folder again.

    Without the name: a second cache in one process may lack code.
    """
    clear = _find("torch._inductor.utils", "clear_caches")
    # The name before torch 2.7.
    clear = clear or _find("torch._inductor.utils", "clear_inductor_caches")
    if clear is not None:
        clear()


@contextmanager
def without_precompiled_headers() -> Iterator[None]:
    """Skip the headers that inductor precompiles before it looks for a compiled library.

    Saves 6 s of processor time of a warm start on a machine that has not compiled before. Without
    the name: torch precompiles them.
    """
    codecache: Any = import_module("torch._inductor.codecache")
    with _replaced(codecache, "_precompile_header", lambda *_args, **_keywords: ""):
        yield


@contextmanager
def remembering_probes(file: Path) -> Iterator[None]:
    """Make inductor probe each instruction set only once for all processes.

    Each probe starts an interpreter that loads a library: 1 s of processor time of a warm start.
    Without the name: every process probes.
    """
    kind = _find("torch._inductor.cpu_vec_isa", "VecISA")
    probe: Any = getattr(kind, "check_build", None)
    working = set(file.read_text(encoding="utf-8").splitlines()) if file.exists() else set()
    num_known = len(working)

    def probe_once(instruction_set: Any, code: str) -> bool:
        name = f"{instruction_set} {sha256(code.encode()).hexdigest()[:16]}"
        if name not in working and probe(instruction_set, code):
            working.add(name)
        return name in working

    with nullcontext() if probe is None else _replaced(kind, "check_build", probe_once):
        yield
    if len(working) > num_known:
        draft = file.with_name(f".{os.getpid()}.probes.tmp")
        draft.write_text("\n".join(sorted(working)), encoding="utf-8")
        draft.replace(file)


def probing_meanwhile(inductor: Any) -> Callable[[Any, Any], Any]:
    """Return ``inductor``, which traces a graph on the CPU while a thread probes instruction sets.

    A processor has up to six probes of more than a second; only those of the best set are made.
    Without the names: all are, or inductor makes them when it generates C++.
    """

    def compile_graph(graph: Any, inputs: Any) -> Any:
        module = _find("torch._inductor", "cpu_vec_isa")
        find_all: Any = getattr(module, "valid_vec_isa_list", None)
        if find_all is None or not all(
            one.device.type == "cpu" for one in inputs if isinstance(one, torch.Tensor)
        ):
            return inductor(graph, inputs)

        # Only x86 has names. The best set comes first.
        names = set(getattr(module, "x86_isa_checker", list)())
        sets = [
            one
            for one in getattr(module, "supported_vec_isa_list", ())
            if names.issuperset(str(one).split())
        ]
        config: Any = import_module("torch._inductor.config")

        def find() -> list[Any]:
            best = found.result()
            is_limited = config.cpp.simdlen is not None or "ATEN_CPU_CAPABILITY" in os.environ
            return list(find_all()) if is_limited or best is None else [best]

        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(copy_context().run, lambda: next(filter(None, sets), None))
            with _replaced(module, "valid_vec_isa_list", find):
                return inductor(graph, inputs)

    return compile_graph


def _header_of_torch() -> Any:
    # Before torch 2.7 generated C++ includes a copy of this header by its path in the folder, and
    # is keyed by it: every warm start would build all C++ again.
    codecache: Any = import_module("torch._inductor.codecache")
    header = Path(codecache.__file__).absolute().parent / "codegen" / "cpp_prefix.h"
    return _replaced(codecache, "cpp_prefix_path", lambda: str(header))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name, None)
    if before is None:
        yield
        return
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
