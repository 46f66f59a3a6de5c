"""For which machine and which torch compiled code is good."""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

# Counts up when bundles change their shape.
_FORMAT = 1
# What a C++ compiler that is told "native" may use. Other flags of a CPU (virtualization, power,
# mitigations) change with the kernel, and must not part machines that run the same code.
_INSTRUCTION_SETS = re.compile(
    r"(mmx|s?sse|avx|amx|fma|f16c|bmi|abm|lzcnt|popcnt|movbe|adx|aes|vaes|v?pclmul|sha|gfni|cx16|"
    r"lahf|rdrand|rdseed|clflush|clwb|xsave|fsgsbase|3dnow|xop|tbm|prefetch|serialize|movdir)"
)


@dataclass(frozen=True)
class CacheKey:
    """What compiled code depends on.

    Attributes:
        facts: Must be equal for any of the code to be used.
        places: Where things are installed. C++ is keyed by them, and built again elsewhere.
    """

    facts: Mapping[str, Any]
    places: Mapping[str, str]

    @property
    def name(self) -> str:
        """A folder's name, different for different facts."""
        text = json.dumps(self.facts, sort_keys=True)
        release = re.sub(r"[^A-Za-z0-9.+-]", "_", str(self.facts.get("torch")))
        return f"torch-{release}-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def find_key(device_types: Iterable[str], keywords: Mapping[str, Any]) -> CacheKey:
    """Describe this process: torch, Python, machine, and how it is asked to compile.

    Args:
        device_types: Types of the devices that the code runs on.
        keywords: The arguments of ``torch.compile``.

    Returns:
        A key made of JSON values.
    """
    facts = {
        "format": _FORMAT,
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        "python": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
        "system": [platform.system(), platform.machine(), *platform.libc_ver()],
        "cpu": _instruction_sets(),
        # Generated loops name the number of threads.
        "threads": torch.get_num_threads(),
        "compiler": _compiler_version(_compiler()),
        "devices": {kind: _device_facts(kind) for kind in sorted(device_types) if kind != "cpu"},
        "config": {name: _plain(keywords[name]) for name in sorted(keywords)},
    }
    return CacheKey(facts, _places())


def _places() -> dict[str, str]:
    return {
        "torch": str(Path(torch.__file__).parent),
        "python": sysconfig.get_path("include"),
        "compiler": _compiler(),
    }


def _instruction_sets() -> str:
    capability = str(torch.backends.cpu.get_cpu_capability())
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux
        return f"{capability} {platform.processor()}"
    lines = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = lines[1].split() if lines else []
    is_arm = "Features" in text
    return " ".join(
        [capability, *sorted(flag for flag in flags if is_arm or _INSTRUCTION_SETS.match(flag))]
    )


def _compiler() -> str:
    # Where inductor looks, too.
    usual = {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return os.environ.get("CXX", usual)


@cache
def _compiler_version(compiler: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the compiler that inductor is about to run
            [compiler, "--version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return (done.stdout or done.stderr).partition("\n")[0]


def _device_facts(device_type: str) -> dict[str, Any]:
    module = getattr(torch, device_type, None)
    asked = {name: getattr(module, f"get_device_{name}", None) for name in ("name", "capability")}
    facts = {name: _plain(ask()) for name, ask in asked.items() if ask is not None}
    if device_type == "cuda":
        driver = getattr(torch._C, "_cuda_getDriverVersion", None)  # noqa: SLF001
        facts["driver"] = driver() if driver else None
        facts["toolkit"] = torch.version.cuda or torch.version.hip
    facts["triton"] = _version_of("triton")
    return facts


def _version_of(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    # A function's address would be another one in every process.
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', '')}.{name}"
