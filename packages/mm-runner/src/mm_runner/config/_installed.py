"""Find configuration files that installed packages bring, ``PACKAGE::path``."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mm_runner.errors import ConfigError, did_you_mean

# Where OpenMMLab's packages keep their configurations.
_FOLDERS = (".mim/configs", "configs", ".")


def find_file(path: str | Path, folder: Path) -> Path:
    """Return where a configuration is: ``PACKAGE::path``, or a path relative to ``folder``.

    Raises:
        ConfigError: If the package is not installed, or has no such file.
    """
    package, separator, inner = str(path).partition("::")
    if not separator:
        return folder / path
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"{path} was given; no package {package!r} is installed.")
    roots = [Path(one, name) for one in spec.submodule_search_locations for name in _FOLDERS]
    for root in roots:
        if (root / inner).is_file():
            return root / inner
    beside = [one.name for root in roots for one in (root / inner).parent.glob("*")]
    raise ConfigError(
        f"{path} was given; {package} is installed, and has no {inner} in its configurations."
        f"{did_you_mean(Path(inner).name, beside)}"
    )
