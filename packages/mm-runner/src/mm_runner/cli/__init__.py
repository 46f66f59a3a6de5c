"""The ``mm-runner`` command.

A subcommand is a function that a distribution advertises in the entry-point group ``mm.commands``::

    [project.entry-points."mm.commands"]
    count = "my_package.cli:count"

See :data:`Command`.
"""

from ._configuration import add_config_arguments, load_config
from ._main import Command, main

__all__ = ["Command", "add_config_arguments", "load_config", "main"]
