"""What a rank says about itself, and which ranks differ from the others."""

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mm_dist._command._versions import read_versions
from mm_dist._device_choice import available_device_type
from mm_dist._devices import count_devices, device_module, find_row

_UNREADABLE = "cannot be read"


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with the job.

    Attributes:
        kind: ``absent``, ``difference``, ``connection``, ``group`` or ``device``.
        rank: The rank to look at, ``None`` where it is none in particular.
        text: A sentence that names rank, machine, what was found and what was expected.
    """

    kind: str
    rank: int | None
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return it as a mapping."""
        return asdict(self)


def read_facts(device_type: str | None, config: str | None) -> dict[str, Any]:
    """Return what has to be equal on all ranks, and the name of the machine.

    Args:
        device_type: The type of device to count. Defaults to the accelerator that is there.
        config: Path of a file whose hash is taken.

    Raises:
        ConfigError: If the device type is not known.
    """
    row = find_row(device_type or available_device_type())
    describe = getattr(device_module(row), "get_device_name", None)
    count = count_devices(row) if row.name != "cpu" else 0
    compared = {
        **read_versions(),
        "device type": row.name,
        "device count": str(count),
        "device name": str(describe(0)) if describe is not None and count else "",
    }
    if config is not None:
        compared["config"] = _hash_file(Path(config))
    return {"host": platform.node(), "compared": compared}


def _hash_file(path: Path) -> str:
    try:
        return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    except OSError as error:
        return f"{_UNREADABLE}: {error.strerror}: {path}"


def find_differences(facts: Mapping[int, Mapping[str, Any]]) -> list[Problem]:
    """Return one problem for each rank and thing that is not as on most ranks.

    Where none is the most frequent, that of the lowest rank is expected.

    Example:
        >>> a, b = ({"host": "n", "compared": {"torch": v}} for v in ("2.6", "2.13"))
        >>> find_differences({0: a, 1: b})[0].rank
        1
    """
    names = dict.fromkeys(name for each in facts.values() for name in each["compared"])
    problems = [problem for name in names for problem in _compare(name, facts)]
    return sorted(problems, key=lambda problem: problem.rank or 0)


def _compare(name: str, facts: Mapping[int, Mapping[str, Any]]) -> list[Problem]:
    values = {rank: each["compared"].get(name, "not installed") for rank, each in facts.items()}
    expected = Counter(values[rank] for rank in sorted(values)).most_common(1)[0][0]
    if expected.startswith(_UNREADABLE):
        expected = next((v for v in values.values() if not v.startswith(_UNREADABLE)), "")
    return [
        Problem(
            "difference",
            rank,
            f"rank {rank} on {facts[rank]['host']} differs: its {name} is {value or 'none'}"
            + (f", that of the others is {expected}" if expected else ""),
        )
        for rank, value in values.items()
        if value != expected
    ]
