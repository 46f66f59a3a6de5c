"""Where dynamo stopped capturing, in the user's own lines."""

from collections.abc import Iterable
from dataclasses import dataclass
from traceback import FrameSummary
from typing import Any

from mm_compile._failure import innermost_user_frame

_MAX_LENGTH = 200


@dataclass(frozen=True)
class GraphBreak:
    """A place where one graph ended and Python ran between it and the next.

    Attributes:
        frame: ``file:line`` of the user's code, or of torch's where none of the user's ran; None
            where this torch does not tell it.
        reason: What dynamo could not capture, in one line.
    """

    frame: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.frame or 'a place that this torch does not tell'}: {self.reason}"


def dynamo_break_reasons() -> list[Any] | None:
    """Return the list to which dynamo adds every graph break, or None where it keeps none."""
    from torch._dynamo import utils  # noqa: PLC0415 - imports dynamo

    reasons: list[Any] | None = getattr(utils, "graph_break_reasons", None)
    return reasons


def break_reason_of(graph_module: Any) -> list[Any]:
    """Return what ended this graph if it was a break: all that torch 2.0 tells."""
    reason = getattr(graph_module, "compile_subgraph_reason", None)
    return [] if reason is None or reason.reason == "return_value" else [reason]


def graph_break_of(reason: Any) -> GraphBreak:
    """Describe one of dynamo's own reasons."""
    return GraphBreak(_frame_of(getattr(reason, "user_stack", ())), _in_one_line(reason.reason))


def add_breaks(known: list[GraphBreak], reasons: Iterable[Any]) -> None:
    """Add what dynamo tells to what is known, each place once."""
    for reason in reasons:
        if (found := graph_break_of(reason)) not in known:
            known.append(found)


def _frame_of(stack: Iterable[FrameSummary]) -> str | None:
    frames = [(frame.filename, str(frame.lineno)) for frame in stack]
    # An optimizer's step is torch's code throughout.
    return innermost_user_frame(frames) or (":".join(frames[-1]) if frames else None)


def _in_one_line(reason: Any) -> str:
    # Newer ones go on with hints, and with context for whoever develops dynamo.
    text = str(reason).strip("'\"").partition("Hint:")[0].partition("Developer debug")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = ". ".join(part.removeprefix("Explanation: ").rstrip(".") for part in lines)
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 3] + "..."
