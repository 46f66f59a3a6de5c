"""``mm-dist env``: what init_dist would choose here, from which variable, and why."""

import argparse
import os
import platform

from mm_dist._command._output import check_json_target, format_table, write_json, write_line
from mm_dist._command._versions import read_versions
from mm_dist._explanation import explain_environment

_FAILURE_STATUS = 1


def print_environment(options: argparse.Namespace) -> int:
    """Print what would be chosen in this environment; joins nothing.

    Returns:
        0, or 1 if the environment cannot be used as it is, with the reason.

    Raises:
        ConfigError: If the file for JSON cannot be written.
    """
    check_json_target(options.json)
    rows = explain_environment(os.environ, options.launcher)
    remarks = {
        kind: [row.value for row in rows if row.field == kind] for kind in ("warning", "error")
    }
    chosen = [row for row in rows if row.field not in remarks]
    versions = read_versions()
    if options.json:
        result = {
            "host": platform.node(),
            "chosen": {row.field: {"value": row.value, "source": row.source} for row in chosen},
            "warnings": remarks["warning"],
            "errors": remarks["error"],
            "versions": versions,
        }
        write_json(result, options.json)
    if options.json != "-":
        write_line(format_table(["what", "value", "from"], chosen))
        for text in remarks["warning"]:
            write_line(f"\nwarning: {text}")
        for text in remarks["error"]:
            write_line(f"\ncannot be used: {text}")
        write_line()
        write_line(format_table(["installed", "version"], versions.items()))
    return _FAILURE_STATUS if remarks["error"] else 0
