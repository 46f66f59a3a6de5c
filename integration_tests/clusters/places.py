"""What the processes of ``ranks.py`` are expected to know of their places."""

import json
from pathlib import Path
from typing import Any

RANKS = Path(__file__).with_name("ranks.py")


def read_places(file: Path) -> list[dict[str, Any]]:
    """Return what every process knows, in the order of their ranks."""
    return list(json.loads(file.read_text()))


def expected_places(launcher: str, *hosts: str, per_host: int = 2) -> list[dict[str, Any]]:
    """Return the places of processes that fill one machine after the other."""
    return [
        {
            "rank": number * per_host + local_rank,
            "local_rank": local_rank,
            "local_size": per_host,
            "LOCAL_RANK": local_rank,
            "host": host,
            "launcher": launcher,
        }
        for number, host in enumerate(hosts)
        for local_rank in range(per_host)
    ]
