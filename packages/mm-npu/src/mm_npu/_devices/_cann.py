"""Versions of CANN and of the NPU driver, from the files of their installers.

No library is loaded, so that it works beside a broken ``torch_npu``.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

# Set by CANN's set_env.sh: the folder of the toolkit, under the newer name first.
_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
# Where the installers put it for root, newer releases first; see "File Paths" in the CANN software
# installation guide.
_USUAL_HOMES = ("/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest")
# Written by the toolkit, nnrt and nnae packages, the first two in a folder of the architecture. In
# the version.info files beside them, components have other versions.
_CANN_FILES = ("*-linux/ascend_*_install.info", "ascend_*_install.info")
_DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
_INSTALLATION_FILE = "/etc/ascend_install.info"  # of the driver, if it is installed elsewhere

_VERSION = re.compile(r"^\s*version\s*=\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_DRIVER_FOLDER = re.compile(r"^\s*Driver_Install_Path_Param\s*=\s*(\S+)", re.MULTILINE)


def cann_version(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> str | None:
    """Return the version of CANN, None if no installation is found."""
    paths = (path for home in _cann_homes(env, root) for path in _version_files(home))
    return next(filter(None, map(_read_version, paths)), None)


def driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of the NPU driver, None if no installation is found."""
    found = _read_version(_under(root, _DRIVER_FILE))
    folder = _search(_DRIVER_FOLDER, _under(root, _INSTALLATION_FILE))
    if found is None and folder is not None:
        found = _read_version(_under(root, folder) / "driver" / "version.info")
    return found


def _cann_homes(env: Mapping[str, str], root: Path) -> Iterator[Path]:
    named = [env[name] for name in _HOME_VARIABLES if env.get(name)]
    yield from map(Path, named)
    if not named:  # an installation that is named is not replaced by another one
        yield from (_under(root, home) for home in _USUAL_HOMES)


def _version_files(home: Path) -> Iterator[Path]:
    for pattern in _CANN_FILES:
        yield from sorted(home.glob(pattern))


def _read_version(path: Path) -> str | None:
    return _search(_VERSION, path)


def _search(pattern: re.Pattern[str], path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = pattern.search(text)
    return None if match is None else match[1].strip("[]\"'")


def _under(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
