"""The ``mm-runner`` command.

A subcommand is a class that a distribution advertises in the entry-point group ``mm.commands``::

    [project.entry-points."mm.commands"]
    count = "my_package.cli:Count"

It is built without arguments, and has what :class:`Command` has.
"""

from ._configuration import add_config_arguments, load_config, locating
from ._main import Command, main

__all__ = ["Command", "add_config_arguments", "load_config", "locating", "main"]
