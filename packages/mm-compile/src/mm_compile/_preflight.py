"""Whether compiling can work on this machine, asked before a run and answered in one sentence."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ._config import check_against_torch, parse_config
from ._errors import TorchVersionError
from ._torch import compile_refusal, describe_backend

# Devices whose kernels inductor writes in Triton; for the others it writes C++.
_TRITON_DEVICES = ("cuda", "xpu")
_LEAST_CAPABILITY = (7, 0)


@dataclass(frozen=True)
class CompileSupport:
    """Whether this machine can compile.

    Attributes:
        ok: Whether nothing is known to be missing.
        reason: What is missing and what to install, in one sentence; None if ``ok``.
    """

    ok: bool
    reason: str | None = None


def can_compile(
    cfg: bool | str | Mapping[str, Any] | None = True,  # noqa: FBT001, FBT002 - a config value
    device_type: str = "cpu",
) -> CompileSupport:
    """Say whether ``compile_model(model, cfg)`` has what it needs on this machine.

    Looks for torch >= 2.0, a Python that this torch compiles on and, for the inductor backend, the
    C++ compiler (CPU), or Triton, the C compiler it uses and a GPU that it knows (CUDA, XPU), and
    Python's headers; for other devices, whether inductor writes code for them. Compiles nothing.

    Args:
        cfg: What ``compile_model`` takes.
        device_type: Where the model is: ``"cpu"``, ``"cuda"``, ...; an index is left out.

    Returns:
        The answer, with a reason if it is no. A config that asks for nothing is always fine.

    Raises:
        ConfigError: If ``cfg`` is wrong on any machine.

    Example:
        >>> can_compile(False)
        CompileSupport(ok=True, reason=None)
    """
    config = parse_config(cfg)
    if not config.enabled:
        return CompileSupport(ok=True)
    reason = compile_refusal()
    if reason is None:
        try:
            check_against_torch(config)
        except TorchVersionError as error:  # of one key
            return CompileSupport(ok=False, reason=str(error))
        if describe_backend(config.keywords) == "inductor":
            reason = _missing_for_inductor(device_type.partition(":")[0])
    return CompileSupport(ok=reason is None, reason=reason)


def _missing_for_inductor(device_type: str) -> str | None:
    if device_type in _TRITON_DEVICES:
        # Triton compiles, with a C compiler, what starts its kernels.
        return (
            _missing_triton(device_type)
            or _missing_capability(device_type)
            or _missing_c_compiler(device_type)
            or _missing_python_headers(device_type)
        )
    if device_type != "cpu":
        return _missing_code_for(device_type)
    return _missing_cxx_compiler() or _missing_python_headers(device_type)


def _missing_triton(device_type: str) -> str | None:
    if find_spec("triton") is not None:
        return None
    return (
        f"backend 'inductor' on {device_type} needs Triton, which is not installed: install the "
        "triton that belongs to this torch, or use backend 'aot_eager'."
    )


def _missing_capability(device_type: str) -> str | None:
    if device_type != "cuda" or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    capability = torch.cuda.get_device_capability()
    if capability >= _LEAST_CAPABILITY:
        return None
    return (
        f"backend 'inductor' needs a GPU of CUDA capability >= 7.0 for Triton; this is "
        f"{torch.cuda.get_device_name()} of {capability[0]}.{capability[1]}: use backend "
        "'aot_eager'."
    )


def _missing_code_for(device_type: str) -> str | None:
    from torch._inductor.codegen import common  # noqa: PLC0415 - loaded only to compile

    # Others add theirs when they are imported: torch_npu, for example. torch 2.0 has none of them.
    getattr(common, "init_backend_registration", lambda: None)()
    if getattr(common, "get_scheduling_for_device", lambda _: None)(device_type) is not None:
        return None
    question = "Did you mean 'cuda'? " if device_type == "gpu" else ""
    return (
        f"backend 'inductor' writes no code for {device_type}. {question}Name the backend that "
        "comes with the device, or use 'aot_eager'."
    )


def _missing_c_compiler(device_type: str) -> str | None:
    if any(shutil.which(name) for name in (os.environ.get("CC", "cc"), "gcc", "clang")):
        return None
    return (
        f"backend 'inductor' on {device_type} needs a C compiler for Triton, and there is no gcc "
        "or clang on PATH: install one (Debian and Ubuntu: apt-get install gcc), set CC, or use "
        "backend 'aot_eager'."
    )


def _missing_cxx_compiler() -> str | None:
    # Where inductor looks, too: the variable CXX, else the platform's usual compiler.
    usual = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is not None:
        return None
    return (
        f"backend 'inductor' on cpu needs a C++ compiler, and {compiler!r} is not on PATH: install "
        "one (Debian and Ubuntu: apt-get install g++), set CXX, or use backend 'aot_eager'."
    )


def _missing_python_headers(device_type: str) -> str | None:
    folder = Path(sysconfig.get_path("include"))
    if (folder / "Python.h").exists():
        return None
    return (
        f"backend 'inductor' on {device_type} needs Python's headers, and {folder} has no "
        "Python.h: install them (Debian and Ubuntu: apt-get install python3-dev), or use backend "
        "'aot_eager'."
    )
