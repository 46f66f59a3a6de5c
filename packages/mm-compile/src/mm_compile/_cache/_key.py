"""Cache key: facts about torch and the machine that inductor's own keys leave out."""

import hashlib
import json
import platform
import re
import sys
import sysconfig
from pathlib import Path

import torch

# Increases when the layout of a cache changes.
_FORMAT = 3
FOLDER_NAME = re.compile(r"torch-[A-Za-z0-9_.+-]{1,64}-[0-9a-f]{24}")
# Flags that a C++ compiler may use with -march=native. Others (virtualization, mitigations) change
# with the kernel, although the code stays valid.
_INSTRUCTION_SETS = re.compile(
    r"(mmx|s?sse|avx|amx|fma|f16c|bmi|abm|lzcnt|popcnt|movbe|adx|aes|vaes|v?pclmul|sha|gfni|cx16|"
    r"lahf|rdrand|rdseed|clflush|clwb|xsave|fsgsbase|3dnow|xop|tbm|prefetch|serialize|movdir)"
)


def folder_name() -> str:
    """Return the name of the folder for code of this torch, Python and processor."""
    facts = {
        "format": _FORMAT,
        "torch": [torch.__version__, torch.version.git_version],
        "python": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag,
        "system": [platform.system(), platform.machine(), *platform.libc_ver()],
        "cpu": _instruction_sets(),
        # Generated loops contain the number of threads.
        "threads": torch.get_num_threads(),
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    release = re.sub(r"[^A-Za-z0-9.+-]", "_", torch.__version__)
    return f"torch-{release[:64]}-{digest[:24]}"


def _instruction_sets() -> str:
    capability = str(torch.backends.cpu.get_cpu_capability())
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux
        return f"{capability} {platform.processor()}"
    lines = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = lines[1].split() if lines else []
    is_arm = "Features" in text
    known = sorted(flag for flag in flags if is_arm or _INSTRUCTION_SETS.match(flag))
    return " ".join([capability, *known])
