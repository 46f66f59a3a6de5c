"""What the installed torch can compile, asked of torch itself and never at import time.

Nothing here may import ``torch._dynamo`` or ``torch._inductor`` at module level: torch 1.13 has no
working pair of them, and elsewhere they cost about a second.
"""

import inspect
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from platform import python_version
from typing import Any

import torch

from ._errors import TorchVersionError
from ._garbage import imports_taken_for_old

# The keywords and modes of torch 2.0, for a torch that cannot be asked (1.13; 2.0 for the modes).
_KEYWORDS_OF_TORCH_2_0 = ("fullgraph", "dynamic", "backend", "mode", "options", "disable")
_MODES_OF_TORCH_2_0 = ("default", "reduce-overhead", "max-autotune")


def torch_version() -> tuple[int, int]:
    """Return the major and minor version of the installed torch."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def shares_code() -> bool:
    """Whether dynamo runs code compiled for one module with another one like it."""
    # Since then the parameters are inputs of a graph; before, they were parts of it.
    return torch_version() >= (2, 5)


def compiles_optimizers() -> bool:
    """Whether dynamo compiles an optimizer's step with its learning rate in a tensor."""
    return torch_version() >= (2, 4)


def version_limit() -> int:
    """Return how many versions of one function dynamo keeps before it runs it eagerly."""
    from torch._dynamo import config  # noqa: PLC0415 - imports dynamo

    # Newer ones call it recompile_limit, and keep the old name.
    return int(config.cache_size_limit)


def takes_version_limit() -> bool:
    """Whether ``torch.compile`` takes that limit for what it compiles, as ``recompile_limit``."""
    return "recompile_limit" in compile_keywords()


def largest_version_limit() -> int:
    """Return how many versions of one function dynamo can be made to keep."""
    if not takes_version_limit():
        return version_limit()
    from torch._dynamo import config  # noqa: PLC0415 - imports dynamo

    return max(version_limit(), int(config.accumulated_recompile_limit))


def dynamo_errors() -> tuple[type[Exception], ...]:
    """Name what dynamo raises where it cannot compile."""
    from torch._dynamo import exc  # noqa: PLC0415 - imports dynamo

    limit_hit = getattr(exc, "FailOnRecompileLimitHit", None)
    # torch 2.0 lets its own assertions out as they are.
    assertion = [AssertionError] if torch_version() < (2, 1) else []
    return (exc.TorchDynamoException, *([limit_hit] if limit_hit else []), *assertion)


def is_of_dynamo(error: Exception, errors: tuple[type[Exception], ...]) -> bool:
    """Whether dynamo raised ``error`` while it captured, and no code that ran did.

    Args:
        error: What a call of compiled code raised.
        errors: What :func:`dynamo_errors` names, and what else shall count.
    """
    # Its own assertions, and some others, come out as they are, with the stack that it captured.
    return isinstance(error, errors) or hasattr(error, "real_stack")


def is_users_own_error(error: Exception) -> bool:
    """Whether eager code would most likely fail too: shapes that do not fit, for example."""
    from torch._dynamo import exc  # noqa: PLC0415 - imports dynamo

    return isinstance(error, (exc.TorchRuntimeError, AssertionError, IndexError))


def compile_keywords() -> tuple[str, ...]:
    """Name the keyword arguments that this torch's ``torch.compile`` takes."""
    if not hasattr(torch, "compile"):
        return _KEYWORDS_OF_TORCH_2_0
    return tuple(name for name in inspect.signature(torch.compile).parameters if name != "model")


def backend_names() -> list[str]:
    """Name every backend known to dynamo: built in, experimental, and from entry points."""
    from torch._dynamo import list_backends  # noqa: PLC0415 - imports dynamo

    names: list[str] = list_backends(())
    return [name for name in names if not name.endswith("_TESTING_ONLY")]


def inductor_modes() -> tuple[str, ...]:
    """Name the modes of the inductor backend."""
    import torch._inductor as inductor  # noqa: PLC0415 - loaded only to compile

    list_mode_options = getattr(inductor, "list_mode_options", None)
    return tuple(list_mode_options()) if list_mode_options else _MODES_OF_TORCH_2_0


def inductor_options() -> tuple[str, ...] | None:
    """Name the options of the inductor backend, or None where this torch does not list them."""
    import torch._inductor as inductor  # noqa: PLC0415 - loaded only to compile

    list_options = getattr(inductor, "list_options", None)
    # The last two are read by torch.compile itself and are in no list.
    return (*list_options(), "guard_filter_fn", "use_aoti") if list_options else None


def compile_refusal() -> str | None:
    """Say why this torch cannot compile on this Python, or return None.

    torch decides, since its own limits move with every release: compiling a function of nothing
    costs the import of dynamo and raises where Python or the platform is not supported.
    """
    if not hasattr(torch, "compile"):
        return (
            f"compile needs PyTorch >= 2.0.0; this is PyTorch {torch.__version__}, "
            "which has no torch.compile."
        )
    is_imported = "torch._dynamo" in sys.modules
    try:
        with nullcontext() if is_imported else imports_taken_for_old():
            torch.compile(_nothing, backend="eager")
    except RuntimeError as error:
        return (
            f"compile needs a Python that PyTorch {torch.__version__} can compile on; "
            f"this is Python {python_version()}, and torch says: {error}."
        )
    return None


def require_compile() -> None:
    """Refuse to go on where torch cannot compile.

    Raises:
        TorchVersionError: If torch is older than 2.0, or does not compile on this Python.
    """
    refusal = compile_refusal()
    if refusal is not None:
        raise TorchVersionError(f"{refusal} Upgrade torch, or set compile to False.")


def describe_backend(keywords: Mapping[str, Any]) -> str:
    """Name the backend that ``torch.compile(**keywords)`` uses."""
    backend = keywords.get("backend", "inductor")
    if isinstance(backend, str):
        return backend
    return str(getattr(backend, "__name__", type(backend).__name__))


def _nothing() -> None:
    """Do nothing: the function that is compiled to ask torch whether it compiles."""
