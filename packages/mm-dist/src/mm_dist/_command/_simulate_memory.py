"""How much memory this process uses, and how much of it mm-dist's own objects."""

import gc
import sys
import tracemalloc
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1] / "*")
_COMMAND = str(Path(__file__).parent / "*")


def resident_bytes() -> int:
    """Return the memory of this process that is in use; its peak where no system tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return _peak_bytes()
    import resource  # noqa: PLC0415 (not on every system)

    return pages * resource.getpagesize()


def _peak_bytes() -> int:
    try:
        import resource  # noqa: PLC0415 (as above)
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the others KiB.
    return peak if sys.platform == "darwin" else peak * 1024


def own_objects() -> tuple[int, int]:
    """Return size in bytes and number of the objects alive that mm-dist's own code allocated.

    Those of this command are left out. ``tracemalloc`` has to be tracing.
    """
    gc.collect()  # also empties the interpreter's lists of freed blocks
    snapshot = tracemalloc.take_snapshot().filter_traces(
        (tracemalloc.Filter(inclusive=True, filename_pattern=_PACKAGE),)
    )
    kept = snapshot.filter_traces((tracemalloc.Filter(inclusive=False, filename_pattern=_COMMAND),))
    statistics = kept.statistics("filename")
    return sum(each.size for each in statistics), sum(each.count for each in statistics)
