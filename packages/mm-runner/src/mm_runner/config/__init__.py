"""Configurations: files, inheritance, command-line overrides, output.

A configuration is a plain mapping whose keys are the arguments of
:class:`mm_runner.Runner`; :class:`Config` adds files and attribute access. Nothing here imports
torch.
"""

from typing import TYPE_CHECKING

from mm_runner._lazy import importing

from ._config_dict import ConfigDict

if TYPE_CHECKING:
    from ._config import Config
    from ._custom_imports import import_modules
    from ._options import DictAction, parse_options
    from ._python import read_base

__all__ = ["Config", "ConfigDict", "DictAction", "import_modules", "parse_options", "read_base"]

if not TYPE_CHECKING:  # which would take any name then
    __getattr__, __dir__ = importing(__name__, "_config", "_options", "_custom_imports", "_python")
