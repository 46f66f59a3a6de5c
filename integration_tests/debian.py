"""Programs of Debian's packages, installed where they are missing."""

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence


def why_missing(programs: Sequence[str], packages: Sequence[str]) -> str | None:
    """Install ``packages`` unless ``programs`` are there.

    Returns:
        Why that is impossible here; ``None`` if the programs are there.

    Raises:
        RuntimeError: If the installation fails.
    """
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return None
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return f"{', '.join(missing)} missing, which only root on Debian could install"
    _update()
    _apt_get("install", "--no-install-recommends", *packages)
    return None


@functools.cache
def _update() -> None:
    _apt_get("update")


def _apt_get(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-q", "-y", *arguments],  # noqa: S607 - found on PATH, as everything here
        # Otherwise a package may ask a question.
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"apt-get {arguments[0]} failed:\n{done.stdout}\n{done.stderr}")
