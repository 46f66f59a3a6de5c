"""What one rank says about itself, and its form in the store."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mm_dist._hang_report._activity import Activity
from mm_dist._hang_report._flight_recorder import Operation


@dataclass(frozen=True)
class Standing:
    """How far a rank has come in one process group.

    Attributes:
        counted: torch's count of the group's collectives.
        start: The count that the group began with; ``None`` where it was not seen beginning.
        recorded: The number of its newest collective in the flight recorder, if there is one.
        is_exact: Whether torch counts collectives only; on gloo it can count sends, too.
        age_s: Seconds since it moved last.
        timeout_s: How long a collective of the group may take.
    """

    counted: int
    start: int | None
    recorded: int | None
    is_exact: bool
    age_s: float
    timeout_s: float


@dataclass(frozen=True)
class Sample:
    """One rank at one moment.

    Attributes:
        request: The number of the request that it answers; 0 before the first.
        iteration: Its training iteration; ``None`` if nobody counts.
        activity: What it is in, by its stack.
        place: Where that is, in the user's terms.
        stack: Its innermost frames as lines, outermost first.
        same_place_s: For how many seconds its whole stack has been the same.
        standings: How far it has come, by process group.
        operations: Its last collectives, from the flight recorder.
        error: Type and message of the exception that ended it; empty while it runs.
        wall_time: When the sample was taken, in seconds of the wall clock.
    """

    request: int
    iteration: int | None
    activity: Activity
    place: str
    stack: Sequence[str]
    same_place_s: float
    wall_time: float
    standings: Mapping[str, Standing] = field(default_factory=dict)
    operations: Sequence[Operation] = ()
    error: str = ""


def encode_sample(sample: Sample) -> str:
    """Return a sample as text."""
    return json.dumps(asdict(sample))


def decode_sample(text: str) -> Sample:
    """Return the sample that a text of ``encode_sample`` stands for."""
    content: dict[str, Any] = json.loads(text)
    content["activity"] = Activity(*content["activity"])
    content["standings"] = {k: Standing(**v) for k, v in content["standings"].items()}
    content["operations"] = [Operation(**operation) for operation in content["operations"]]
    return Sample(**content)
