"""What rank 0 prints about all ranks, and the exit status that says which one to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mm_dist._command._check_facts import Problem
from mm_dist._command._check_speed import format_speed
from mm_dist._command._output import format_table
from mm_dist._process_group._interface import is_loopback
from mm_dist._rank_spans import format_ranks

FIRST_RANK_STATUS, _LAST_NAMED_RANK = 10, 64
_FAILURE_STATUS = 1
_HASH_LENGTH = len("sha256:") + 12


@dataclass
class Report:
    """What was found out.

    Attributes:
        launcher: The launcher that was read.
        num_ranks: How many ranks there should be.
        facts: What each rank that came said about itself.
        problems: What is wrong, in the order in which it was found out.
        notes: What may go wrong.
        speed: The rows of ``summarize_speed``; empty where nothing was measured.
        backend: Backend that was measured.
    """

    launcher: str
    num_ranks: int
    facts: dict[int, dict[str, Any]]
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    speed: list[dict[str, Any]] = field(default_factory=list)
    backend: str | None = None

    @property
    def status(self) -> int:
        """0 if all is well, 10 + the lowest rank to look at, 1 if it is none in particular."""
        ranks = [problem.rank for problem in self.problems if problem.rank is not None]
        if ranks:
            return FIRST_RANK_STATUS + min(*ranks, _LAST_NAMED_RANK)
        return _FAILURE_STATUS if self.problems else 0

    @property
    def verdict(self) -> dict[str, Any]:
        """What all ranks are told: status, and which of them tells the launcher the reason."""
        named = [(each.rank, each.text) for each in self.problems if each.rank is not None]
        rank, reason = min(named) if named else (0, self.problems[0].text if self.problems else "")
        # An absent rank tells nothing.
        speaker = rank if rank in self.facts else 0
        return {"status": self.status, "speaker": speaker, "reason": reason}

    def as_json(self) -> dict[str, Any]:
        """Return it as a mapping."""
        return {
            "status": self.status,
            "launcher": self.launcher,
            "world_size": self.num_ranks,
            "backend": self.backend,
            "problems": [problem.as_json() for problem in self.problems],
            "notes": self.notes,
            "ranks": {
                str(rank): {
                    "host": each["host"],
                    "addresses": each["addresses"],
                    **each["compared"],
                }
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
            parts.append(f"all-reduce with {self.backend}:\n{format_speed(self.speed)}")
        parts += [f"note: {note}" for note in self.notes]
        parts += [f"problem: {problem.text}" for problem in self.problems]
        all_is_well = "all is well: every rank came, is equal to the others and reaches them"
        parts.append(f"exit status {self.status}" if self.problems else all_is_well)
        return "\n\n".join(parts)


def find_notes(facts: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return what goes wrong with some backends only.

    gloo binds to what the machine's name means there, unless it is told an interface.
    """
    if len({tuple(each["addresses"]) for each in facts.values()}) < 2:
        return []
    trapped = [r for r, each in facts.items() if is_loopback(each["name_address"])]
    trapped = [rank for rank in trapped if not facts[rank]["interface"]]
    if not trapped:
        return []
    note = (
        f"on rank {format_ranks(trapped)} the machine's own name means its loopback address, "
        "which gloo would give to the others, and no other way to them can be told; set "
        "GLOO_SOCKET_IFNAME there to the interface to use"
    )
    return [note]


def _format_facts(facts: Mapping[int, Mapping[str, Any]]) -> str:
    """Return one line for the ranks of a machine that say the same."""
    names = list(dict.fromkeys(name for each in facts.values() for name in each["compared"]))
    names = [n for n in names if any(each["compared"].get(n) for each in facts.values())]
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank, each in facts.items():
        address = each["addresses"][0] if each["addresses"] else ""
        values = [_shorten(each["compared"].get(name, "")) for name in names]
        groups.setdefault((each["host"], address, *values), []).append(rank)
    rows: Sequence[Sequence[str]] = [
        [format_ranks(ranks), *values] for values, ranks in groups.items()
    ]
    return format_table(["ranks", "host", "address", *names], rows)


def _shorten(value: str) -> str:
    return value[:_HASH_LENGTH] if value.startswith("sha256:") else value
