"""Expand Slurm's compressed lists, so that ``scontrol`` need not exist on a compute node."""

import re
from itertools import product
from math import prod

from mm_dist._errors import LaunchError

# Names hold no blanks and no round brackets: '(null)' is what Slurm writes for none.
_ITEM = re.compile(r"(?:[^,\[\]()\s]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# More nodes than Slurm can number; a list of so many is a mistake, and would fill the memory.
_MAX_NODES = 65536
_TASKS = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_node_list(text: str) -> list[str]:
    """Expand a node list as ``scontrol show hostnames`` does, zero padding kept.

    Raises:
        LaunchError: If the text is no node list.

    Example:
        >>> expand_node_list("n[1-2],gpu[08-09]")
        ['n1', 'n2', 'gpu08', 'gpu09']
    """
    items = _ITEM.findall(text)
    if not items or ",".join(items) != text:
        raise LaunchError(f"Cannot read the Slurm node list {text!r}; expected one like n[1-3],m4.")
    return [name for item in items for name in _expand_item(item)]


def _expand_item(item: str) -> list[str]:
    # 'rack[1-2]n[01-02]' splits into text and bracketed parts in turn; the product of all parts
    # runs through them in Slurm's order.
    parts = re.split(r"\[([^\]]*)\]", item)
    choices = [
        _expand_ranges(part) if is_bracketed else [part]
        for part, is_bracketed in zip(parts, [False, True] * len(parts), strict=False)
    ]
    _check_number_of_nodes(item, prod(len(choice) for choice in choices))
    return ["".join(choice) for choice in product(*choices)]


def _expand_ranges(text: str) -> list[str]:
    numbers: list[str] = []
    for piece in text.split(","):
        match = _RANGE.fullmatch(piece)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise LaunchError(f"Cannot read {piece!r} in a Slurm node list; expected 3 or 3-7.")
        _check_number_of_nodes(piece, int(last) - int(first) + 1)
        numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
    return numbers


def _check_number_of_nodes(text: str, count: int) -> None:
    if count > _MAX_NODES:
        raise LaunchError(
            f"Cannot read {text!r} in a list of Slurm: {count} nodes are more than the "
            f"{_MAX_NODES} that Slurm knows."
        )


def expand_tasks_per_node(text: str) -> list[int]:
    """Expand Slurm's count of tasks on each node.

    Raises:
        LaunchError: If the text is no such list.

    Example:
        >>> expand_tasks_per_node("2(x3),1")
        [2, 2, 2, 1]
    """
    counts: list[int] = []
    for piece in text.split(","):
        match = _TASKS.fullmatch(piece)
        if match is None:
            raise LaunchError(
                f"Cannot read the Slurm tasks per node {text!r}; expected a list like 2(x3),1."
            )
        _check_number_of_nodes(piece, int(match[2] or 1))
        counts += [int(match[1])] * int(match[2] or 1)
    return counts
