"""The file in which a failing rank tells torch's launcher why."""

import json
import os
import time
import traceback
from pathlib import Path
from typing import Any

_VARIABLE = "TORCHELASTIC_ERROR_FILE"
# The launcher takes the earliest failure for the cause. Times are whole seconds, and that of a
# rank that was killed is when the launcher looked, up to 5 s later.
_CONSEQUENCE_DELAY_S = 10


def write_error_file(error: BaseException, facts: dict[str, Any], last_line: str) -> None:
    """Record an exception as torch's ``record`` does, unless something has done so already.

    Args:
        error: The exception that ends this rank.
        facts: Added to what torch records; ``is_consequence`` among them delays its time, so that
            the launcher does not take it for the first failure.
        last_line: Added to the traceback: the launcher prints that last.
    """
    path = Path(os.environ.get(_VARIABLE, ""))
    if not path.name or path.exists():
        return
    # Slow to import, and needed by nobody else.
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler  # noqa: PLC0415

    trace = error.__traceback__
    try:
        raise error
    except type(error):
        # torch's handler takes the traceback of the exception that is being handled.
        get_error_handler().record_exception(error)
    finally:
        error.__traceback__ = trace
    _amend(path, error, facts, last_line)


def _amend(path: Path, error: BaseException, facts: dict[str, Any], last_line: str) -> None:
    """Say more than torch does; a handler of the user's may write something else, or nothing."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        extra = content["message"]["extraInfo"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra.update(facts, py_callstack=f"{trace.rstrip()}\n{last_line}")
    if facts.get("is_consequence"):
        extra["timestamp"] = str(int(time.time()) + _CONSEQUENCE_DELAY_S)
    unfinished = path.with_name(f"{path.name}.unfinished")
    # Whole or not at all: the launcher may read it at any moment.
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.replace(path)
