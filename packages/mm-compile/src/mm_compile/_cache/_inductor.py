"""How inductor, of whatever version, is led to compile into a cache and out of it."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from mm_compile._errors import TorchVersionError
from mm_compile._torch import torch_version

Compile = Callable[..., Any]


def require_cache() -> None:
    """Refuse a torch whose inductor keeps nothing but C++.

    Raises:
        TorchVersionError: If torch is older than 2.4.
    """
    if torch_version() < (2, 4):
        raise TorchVersionError(
            f"compile.cache needs PyTorch >= 2.4, whose inductor keeps compiled graphs; this is "
            f"PyTorch {torch.__version__}. Upgrade torch, or leave cache out."
        )


def is_disabled() -> bool:
    """Whether the user has forbidden inductor to keep anything."""
    from torch._inductor import config  # noqa: PLC0415 - loaded only to compile

    return bool(getattr(config, "force_disable_caches", False))


def compiling_communicates() -> bool:
    """Whether ranks are set to exchange what they find out while they compile any graph."""
    from torch._functorch import config as functorch_config  # noqa: PLC0415
    from torch._inductor import config  # noqa: PLC0415

    return any(
        getattr(owner, name, False)
        for owner, name in (
            (functorch_config, "_sync_decision_cross_ranks"),
            (functorch_config, "_broadcast_rank0_decision"),
            (config, "distributed_max_autotune_gemm"),
        )
    )


def compiles_backward_at_once() -> bool:
    """Whether torch can be told to compile a backward together with its forward."""
    from torch._functorch import config  # noqa: PLC0415 - loaded only to compile

    return hasattr(config, "force_non_lazy_backward_lowering")


@contextmanager
def keeping_graphs() -> Iterator[None]:
    """Make inductor keep what it compiles, in a way that does not depend on its folder."""
    from torch._functorch import config as functorch_config  # noqa: PLC0415
    from torch._inductor import config  # noqa: PLC0415

    with ExitStack() as stack:
        stack.enter_context(config.patch(fx_graph_cache=True))
        if compiles_backward_at_once():
            stack.enter_context(functorch_config.patch(force_non_lazy_backward_lowering=True))
        stack.enter_context(_header_where_torch_is())
        yield


@contextmanager
def without_precompiled_headers() -> Iterator[None]:
    """Spare the headers that inductor would compile first, though it compiles nothing with them.

    It makes sure of them (some ten seconds on a fresh machine) before it looks whether the library
    is there. Without, a library that is missing after all takes longer to build.
    """
    from torch._inductor import codecache  # noqa: PLC0415

    if not hasattr(codecache, "_precompile_header"):
        yield
        return
    with _replaced(codecache, "_precompile_header", lambda *_args, **_keywords: ""):
        yield


@contextmanager
def remembering_probes(verdicts: dict[str, bool]) -> Iterator[None]:
    """Let inductor probe an instruction set only once for all processes.

    Else each process compiles, and each starts an interpreter to load, a library per set.

    Args:
        verdicts: What is known of this machine; what is found out is added.
    """
    try:
        from torch._inductor.cpu_vec_isa import VecISA  # noqa: PLC0415
    except ImportError:  # before torch 2.5 or so
        yield
        return
    probe = VecISA.check_build

    def probe_once(instruction_set: Any, code: str) -> bool:
        name = f"{instruction_set} {sha256(code.encode()).hexdigest()[:16]}"
        if name not in verdicts:
            verdicts[name] = probe(instruction_set, code)
        return verdicts[name]

    with _replaced(VecISA, "check_build", probe_once):
        yield


@contextmanager
def probing_until_found() -> Iterator[None]:
    """Let inductor probe instruction sets only until one works: it takes the first.

    It would go on to probe all others that the processor has, one after the other, which is a third
    of the time that compiling a small model takes.
    """
    try:
        from torch._inductor import config, cpu_vec_isa  # noqa: PLC0415
    except ImportError:  # before torch 2.5 or so
        yield
        return
    list_all: Any = cpu_vec_isa.valid_vec_isa_list
    is_known = hasattr(cpu_vec_isa, "supported_vec_isa_list") and hasattr(list_all, "cache_info")
    if not is_known or list_all.cache_info().currsize:  # inside of another one, or all are probed
        yield
        return
    found: list[Any] = []

    def list_first() -> list[Any]:
        if config.cpp.simdlen is not None or os.getenv("ATEN_CPU_CAPABILITY"):
            return list_all()  # type: ignore[no-any-return]  # the user wants a certain one
        if not found:
            found.extend(_first_valid(cpu_vec_isa, list_all.__wrapped__))
        return found

    with _replaced(cpu_vec_isa, "valid_vec_isa_list", list_first):
        yield


def _first_valid(cpu_vec_isa: Any, list_all: Callable[[], list[Any]]) -> list[Any]:
    """Return what ``list_all`` begins with, which probes all that it is let know of."""
    for instruction_set in cpu_vec_isa.supported_vec_isa_list:
        with _replaced(cpu_vec_isa, "supported_vec_isa_list", [instruction_set]):
            valid = list_all()
        if valid:
            return valid
    return []


def forget_loaded() -> None:
    """Make inductor forget which code it has loaded from other folders.

    Else it would not write that code again, and the folder that it works in would lack it.
    """
    from torch._inductor import utils  # noqa: PLC0415

    # The name before torch 2.7 or so.
    clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if clear is not None:
        clear()


def compile_parts(wrapper: Any, around: Callable[[Any, Any, Compile], Any]) -> Compile:
    """Return inductor with ``around`` called around every graph that it compiles.

    Args:
        wrapper: What ``torch.compile`` makes of the backend's name, mode and options.
        around: Called as ``around(graph_module, inputs, compile)``.
    """
    from torch._inductor import compile_fx  # noqa: PLC0415

    def compile_part(graph_module: Any, inputs: Any, **keywords: Any) -> Any:
        def compile_now() -> Any:
            return compile_fx.compile_fx_inner(graph_module, inputs, **keywords)

        return around(graph_module, inputs, compile_now)

    def compile_whole(graph_module: Any, inputs: Any) -> Any:
        return compile_fx.compile_fx(
            graph_module, inputs, inner_compile=compile_part, config_patches=wrapper.config
        )

    return compile_whole


def _header_where_torch_is() -> Any:
    # Before torch 2.7 or so generated C++ includes a copy of this header by its path in the
    # folder, and is keyed by that. The original has the same path in every process.
    from torch._inductor import codecache  # noqa: PLC0415

    header = Path(codecache.__file__).absolute().parent / "codegen" / "cpp_prefix.h"
    if not hasattr(codecache, "cpp_prefix_path") or not header.exists():
        return nullcontext()
    return _replaced(codecache, "cpp_prefix_path", lambda: str(header))


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
