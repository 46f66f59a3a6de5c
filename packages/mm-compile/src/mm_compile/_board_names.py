"""Names in the process group's store, the same on all ranks."""

import hashlib
from collections import Counter
from collections.abc import Iterable

_numbers: Counter[str] = Counter()


def board_name(purpose: str, labels: Iterable[str]) -> str:
    """Name a notice board of one model.

    Ranks find the same one although some of them have compiled other models besides; models that
    look alike are compiled in one order on all ranks.

    Args:
        purpose: What the board is for.
        labels: Those of the model's regions.
    """
    digest = hashlib.sha256("\n".join(labels).encode()).hexdigest()[:16]
    name = f"mm_compile/{purpose}/{digest}"
    _numbers[name] += 1
    return f"{name}/{_numbers[name]}"
