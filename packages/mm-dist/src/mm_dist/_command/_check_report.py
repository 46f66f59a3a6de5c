"""What ``mm-dist check`` finds, as text and JSON, and the exit status that names a rank."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mm_dist._command._output import format_table
from mm_dist._command._versions import UNREADABLE
from mm_dist._rank_spans import format_ranks

_FIRST_RANK_STATUS, _LAST_NAMED_RANK = 10, 64
_HASH_LENGTH = len("sha256:") + 12


class Problem(NamedTuple):
    """Something that is wrong with the job.

    Attributes:
        kind: ``absent``, ``difference``, ``connection`` or ``group``.
        rank: The rank to look at, ``None`` where it is none in particular.
        text: A sentence that names rank, machine, what was found and what was expected.
    """

    kind: str
    rank: int | None
    text: str


@dataclass
class Report:
    """What was found.

    Attributes:
        launcher: The launcher that was read.
        num_ranks: How many ranks there should be.
        facts: What each rank that came said about itself.
        problems: What is wrong, in the order in which it was found.
        speed: For each size the time of the slowest rank and the bandwidths.
        backend: Backend that was measured.
    """

    launcher: str
    num_ranks: int
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    speed: list[dict[str, Any]] = field(default_factory=list)
    backend: str | None = None

    @property
    def status(self) -> int:
        """0 if all is well, 10 + the lowest rank to look at, 1 if it is none in particular."""
        ranks = [problem.rank for problem in self.problems if problem.rank is not None]
        if ranks:
            return _FIRST_RANK_STATUS + min(*ranks, _LAST_NAMED_RANK)
        return 1 if self.problems else 0

    @property
    def speaker(self) -> int:
        """The rank that ends with the status: the lowest to look at, or 0 if it is absent."""
        ranks = [problem.rank for problem in self.problems if problem.rank is not None]
        return min(ranks) if ranks and min(ranks) in self.facts else 0

    @property
    def reason(self) -> str:
        """The first problem of the rank to look at."""
        return next((each.text for each in self.problems if each.rank == self.speaker), "")

    def describe_absent(self, ranks: Iterable[int], what: str) -> list[Problem]:
        """Return one problem for each rank that was not there."""
        text = f"of {self.num_ranks} {what}; look at its machine"
        return [Problem("absent", rank, f"rank {rank} {text}") for rank in ranks]

    def add_speed(self, backend: str, times: Mapping[int, Mapping[str, float]]) -> None:
        """Add what all-reduces took.

        The bus bandwidth is the algorithm's (size by time) times ``2 * (n - 1) / n``: of the
        optimal algorithms, each rank sends and receives this many times the size, so that the
        number can be compared with the speed of the links, whatever the number of ranks. (NVIDIA,
        "Performance reported by NCCL tests",
        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)

        Args:
            backend: That was measured.
            times: Of each rank, seconds by size in bytes as text.
        """
        self.backend = backend
        for size in sorted(map(int, times[0])):
            slowest = max(times, key=lambda rank: times[rank][str(size)])
            seconds = times[slowest][str(size)]
            algorithm = size / seconds / 1e9
            self.speed.append(
                {
                    "bytes": size,
                    "seconds": seconds,
                    "algorithm_gb_per_s": algorithm,
                    "bus_gb_per_s": algorithm * 2 * (len(times) - 1) / len(times),
                    "slowest_rank": slowest,
                }
            )

    def as_json(self) -> dict[str, Any]:
        """Return it as a mapping."""
        return {
            "status": self.status,
            "launcher": self.launcher,
            "world_size": self.num_ranks,
            "backend": self.backend,
            "problems": [problem._asdict() for problem in self.problems],
            "ranks": {
                str(rank): {"host": each["host"], **each["compared"]}
                for rank, each in self.facts.items()
            },
            "all_reduce": self.speed,
        }

    def as_text(self) -> str:
        """Return it as lines to read."""
        parts = [
            f"mm-dist check: {len(self.facts)} of {self.num_ranks} ranks, launcher {self.launcher}",
            _format_facts(self.facts),
        ]
        if self.speed:
            header = ["bytes", "median ms", "algorithm GB/s", "bus GB/s", "slowest rank"]
            rows = [
                [
                    str(row["bytes"]),
                    f"{row['seconds'] * 1e3:.3f}",
                    f"{row['algorithm_gb_per_s']:.3f}",
                    f"{row['bus_gb_per_s']:.3f}",
                    str(row["slowest_rank"]),
                ]
                for row in self.speed
            ]
            parts.append(f"all-reduce with {self.backend}:\n{format_table(header, rows)}")
        parts += [f"problem: {problem.text}" for problem in self.problems]
        all_is_well = "all is well: every rank came, is equal to the others and reaches them"
        parts.append(f"exit status {self.status}" if self.problems else all_is_well)
        return "\n\n".join(parts)


def _format_facts(facts: Mapping[int, Mapping[str, Any]]) -> str:
    """Return one line for the ranks of a machine that say the same."""
    names = list(dict.fromkeys(name for each in facts.values() for name in each["compared"]))
    names = [n for n in names if any(each["compared"].get(n) for each in facts.values())]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, each in facts.items():
        values = [each["compared"].get(name, "") for name in names]
        values = [v[:_HASH_LENGTH] if v.startswith("sha256:") else v for v in values]
        address = next(iter(each.get("addresses", ())), "")
        groups.setdefault((each["host"], address, *values), []).append(rank)
    rows = [[format_ranks(ranks), *values] for values, ranks in groups.items()]
    return format_table(["ranks", "host", "address", *names], rows)


def find_differences(facts: Mapping[int, Mapping[str, Any]]) -> list[Problem]:
    """Return one problem for each rank and thing that is not as on most ranks.

    Where none is the most frequent, that of the lowest rank is expected.

    Example:
        >>> a, b = ({"host": "n", "compared": {"torch": v}} for v in ("2.6", "2.13"))
        >>> find_differences({0: a, 1: b})[0].rank
        1
    """
    problems = []
    for name in dict.fromkeys(name for each in facts.values() for name in each["compared"]):
        values = {rank: each["compared"].get(name, "not installed") for rank, each in facts.items()}
        readable = [v for _, v in sorted(values.items()) if not v.startswith(UNREADABLE)]
        expected = Counter(readable).most_common(1)[0][0] if readable else ""
        for rank, value in values.items():
            if value != expected:
                others = f", that of the others is {expected}" if expected else ""
                host = facts[rank]["host"]
                text = f"rank {rank} on {host} differs: its {name} is {value or 'none'}{others}"
                problems.append(Problem("difference", rank, text))
    return sorted(problems, key=lambda problem: problem.rank or 0)


def find_unreachable(
    missed: Mapping[int, Mapping[str, list[str]]], hosts: Mapping[int, str]
) -> list[Problem]:
    """Return one problem for each pair that could not connect.

    The rank to look at is the one of the pair that takes part in more such pairs.

    Args:
        missed: Of each rank, what it tried for the ranks that it could not reach.
        hosts: The machine of each rank.
    """
    pairs = [
        (rank, int(other), tried) for rank, each in missed.items() for other, tried in each.items()
    ]
    counts = Counter(rank for pair in pairs for rank in pair[:2])
    return [
        Problem(
            "connection",
            max((rank, other), key=lambda each: (counts[each], each)),
            f"rank {rank} on {hosts[rank]} cannot reach rank {other} on {hosts[other]}: "
            f"{'; '.join(tried)}",
        )
        for rank, other, tried in pairs
    ]
