"""The table of faults: injected how, what happened, how long it took, and what was lost."""

import json
from pathlib import Path
from statistics import median

import pytest

# Where the tests leave their rows for the end of the session.
ROWS = pytest.StashKey()
_HEAD = (
    "| fault | injected | what happens | times | noticed after s | resumed after s | lost steps |"
)


def row_text(row):
    """Return one line about one fault."""
    numbers = f"noticed after {_seconds([row['detected_s']])} s, "
    numbers += f"resumed {row['resumed_s']:.1f} s later, {row['lost_steps']} steps lost"
    return f"{row['fault']}, on host {row['host']}: {numbers}"


def as_markdown(rows):
    """Return the table, a line for each kind; of several the median and the longest."""
    kinds = list(dict.fromkeys(row["fault"] for row in rows))
    lines = [_HEAD, "| --- " * 7 + "|"]
    for kind in sorted(kinds):
        own = [row for row in rows if row["fault"] == kind]
        cells = [
            kind,
            own[0]["how"],
            own[0]["policy"],
            str(len(own)),
            _seconds([row["detected_s"] for row in own]),
            _seconds([row["resumed_s"] for row in own]),
            str(max(row["lost_steps"] for row in own)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(rows, path):
    """Write the table to ``path`` with ``.md``, and all rows with ``.json``."""
    Path(path).with_suffix(".md").write_text(f"{as_markdown(rows)}\n")
    Path(path).with_suffix(".json").write_text(json.dumps(rows, indent=1))


def _seconds(values):
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    most = f" (at most {max(known):.1f})" if len(known) > 1 else ""
    return f"{median(known):.1f}{most}"
