"""One rank at one moment: how far its process groups have come, and where its thread is."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch.distributed as dist

from mm_dist._process_group._timeouts import read_group_timeout
from mm_dist._progress import current_iteration
from mm_dist._torch_private import backend_of, count_collectives, group_name, list_groups
from mm_dist.diagnose._stack import Frame, find_wait, locate, read_stack, show_stack

# Older torch begins to count somewhere above, the same on all ranks.
RANDOM_START = 2**20


@dataclass(frozen=True)
class Standing:
    """How far a rank has come in one process group."""

    count: int  # of collectives begun; above RANDOM_START where older torch began anywhere
    is_exact: bool  # false for gloo, which can count sends
    age_s: float  # since the last one began
    timeout_s: float


@dataclass(frozen=True)
class Sample:
    """What a rank publishes about itself."""

    iteration: int | None
    operation: str  # the collective or layer of torch that it is in, empty if none
    is_collective: bool  # whether that certainly waits for other ranks
    place: str  # in the user's code
    stack: Sequence[str]
    same_place_s: float  # how long the stack has not changed
    wall_time: float
    standings: Mapping[str, Standing] = field(default_factory=dict)  # by process group
    error: str = ""  # the exception that ended it

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> "Sample":
        """Return the sample that ``encode`` wrote."""
        content: dict[str, Any] = json.loads(text)
        content["standings"] = {k: Standing(**v) for k, v in content["standings"].items()}
        return Sample(**content)


class Observer:
    """Watches the process groups of this process, and the thread that trains."""

    def __init__(self, thread_id: int, timeout_s: float) -> None:
        self._thread_id = thread_id
        self._stack: Sequence[Frame] = ()
        self._final_stack: Sequence[Frame] = ()
        self._looked_at = self._same_since = time.monotonic()
        self._counts = dict(_read_counts())
        self._moved_at = dict.fromkeys(self._counts, self._looked_at)
        self._starts = {
            key: count if count > RANDOM_START else 0 for key, (count, _) in self._counts.items()
        }
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the timeout of the default group, and read those of the others again."""
        self._default_timeout_s = timeout_s
        timeouts = {group_name(group): read_group_timeout(group) for group, _ in list_groups()}
        self._timeouts = {name: each.total_seconds() for name, each in timeouts.items() if each}
        self._timeouts[group_name(dist.group.WORLD)] = timeout_s

    @property
    def shortest_timeout_s(self) -> float:
        """The shortest timeout of any group of this process."""
        return min([self._default_timeout_s, *map(self._timeout_of, self._counts)])

    @property
    def newest_timeout_s(self) -> float:
        """The timeout of the group that moved last: that of the collective this rank is in."""
        return self._timeout_of(max(self._moved_at, key=self._moved_at.__getitem__, default=""))

    @property
    def quiet_s(self) -> float:
        """For how many seconds no group has moved; where no backend counts, the thread."""
        if not self._moved_at:
            self._look_at_stack()
        return time.monotonic() - max(self._moved_at.values(), default=self._same_since)

    @property
    def may_wait(self) -> bool:
        """Whether the thread may be waiting for other ranks; with an accelerator always."""
        is_exact = any(backend != "gloo" for _, backend in self._counts.values())
        return is_exact or bool(find_wait(self._stack)[0])

    def is_in_collective(self, min_same_place_s: float) -> bool:
        """Whether the stack has been a wait for other ranks, at one place, for so long."""
        is_still = self._looked_at - self._same_since >= min_same_place_s
        return is_still and find_wait(self._stack)[1]

    def look(self) -> None:
        """Notice which groups have moved since the last look; reads a few counters."""
        now, counts = time.monotonic(), dict(_read_counts())
        if counts.keys() != self._counts.keys():
            self._moved_at = {key: at for key, at in self._moved_at.items() if key in counts}
            self.set_timeout(self._default_timeout_s)
        for key, count in counts.items():
            if self._counts.get(key) != count:
                # At some moment since the last look. The earlier one counts: a report that begins
                # too late never appears.
                self._moved_at[key] = self._looked_at
        self._counts, self._looked_at = counts, now

    def freeze(self, stack: Sequence[Frame]) -> None:
        """Use this stack from now on: where the error that ends the thread was raised."""
        self._final_stack = stack

    def take_sample(self, *, error: str = "") -> Sample:
        """Return a sample; ``error`` is type and message of the exception that ends this rank."""
        self._look_at_stack()
        now = time.monotonic()
        operation, is_collective = find_wait(self._stack)
        standings = {
            key: Standing(
                count=count - self._starts.get(key, 0),
                is_exact=backend != "gloo",
                age_s=now - self._moved_at[key],
                timeout_s=self._timeout_of(key),
            )
            for key, (count, backend) in self._counts.items()
        }
        return Sample(
            iteration=current_iteration(),
            operation=operation,
            is_collective=is_collective,
            place=locate(self._stack),
            stack=show_stack(self._stack),
            same_place_s=now - self._same_since,
            wall_time=time.time(),
            standings=standings,
            error=error,
        )

    def _look_at_stack(self) -> None:
        stack = self._final_stack or read_stack(self._thread_id)
        if stack != self._stack:
            self._stack, self._same_since = stack, time.monotonic()

    def _timeout_of(self, key: str) -> float:
        return self._timeouts.get(group_of(key)) or self._default_timeout_s


def _read_counts() -> Iterator[tuple[str, tuple[int, str]]]:
    """Yield each group of this process, with torch's count of its collectives and who counts.

    A group with one backend per device, as ``cpu:gloo,cuda:nccl``, comes once for each, called
    ``name/device:backend``. Groups whose backend does not count are left out.
    """
    for group, backends in list_groups():
        for part in backends.split(","):
            device_type, _, backend = part.rpartition(":")
            count = count_collectives(backend_of(group, device_type) if device_type else group)
            if count is not None:
                name = group_name(group)
                yield (f"{name}/{part}" if device_type else name), (count, backend)


def group_of(key: str) -> str:
    """Return the name of the group that a key of ``Sample.standings`` belongs to."""
    return key.partition("/")[0]
