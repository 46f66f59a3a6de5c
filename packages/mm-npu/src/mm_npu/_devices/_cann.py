"""Versions of CANN and of the NPU driver, from the files of their installers.

No library is loaded, so that it works beside a broken ``torch_npu``.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

# Set by CANN, newer name first.
_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
# Where the installers put it for root, newer releases first.
_USUAL_HOMES = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
# Written by the toolkit, nnrt and nnae packages, the first two in a folder of the architecture. In
# the version.info files beside them, components have other versions.
_CANN_FILES = ("*-linux/ascend_*_install.info", "ascend_*_install.info")
_DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
_VERSION = re.compile(r"^\s*version\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)


def cann_version(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """Return the version of CANN, None if no installation is found."""
    # An installation that is named is not replaced by another one.
    homes = [Path(env[name]) for name in _HOME_VARIABLES if env.get(name)] or [
        root / home.lstrip("/") for home in _USUAL_HOMES
    ]
    paths = [path for home in homes for name in _CANN_FILES for path in sorted(home.glob(name))]
    return next(filter(None, map(_read_version, paths)), None)


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of the NPU driver, None if it is not in its usual place."""
    return _read_version(root / _DRIVER_FILE.lstrip("/"))


def _read_version(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = _VERSION.search(text)
    return None if match is None else match[1].strip("[]\"'")
