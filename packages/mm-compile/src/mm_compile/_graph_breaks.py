"""Graph breaks, by lines of the user's code."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._failure import innermost_user_frame

_MAX_LENGTH = 200


@dataclass(frozen=True)
class GraphBreak:
    """A place where one graph ended and Python ran before the next.

    Attributes:
        frame: ``file:line`` of the user's code, or of torch's if no user code ran; None where this
            torch does not report it.
        reason: What dynamo could not capture, in one line.
    """

    frame: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.frame or 'an unknown place'}: {self.reason}"


def break_reason_of(graph_module: Any) -> list[Any]:
    """Return the graph break that ended a graph: all that torch 2.0 reports."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    return [] if reason is None or reason.reason == "return_value" else [reason]


def add_breaks(known: list[GraphBreak], reasons: Iterable[Any]) -> None:
    """Add dynamo's reasons to ``known``, each place once."""
    for reason in reasons:
        found = GraphBreak(_frame_of(reason), _in_one_line(reason.reason))
        if found not in known:
            known.append(found)


def _frame_of(reason: Any) -> str | None:
    frames = [(each.filename, str(each.lineno)) for each in getattr(reason, "user_stack", ())]
    # An optimizer's step consists of torch's code only.
    return innermost_user_frame(frames) or (":".join(frames[-1]) if frames else None)


def _in_one_line(reason: Any) -> str:
    # Newer versions add hints, and context for developers of dynamo.
    text = str(reason).strip("'\"").partition("Hint:")[0].partition("Developer debug")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = ". ".join(part.removeprefix("Explanation: ").rstrip(".") for part in lines)
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."
