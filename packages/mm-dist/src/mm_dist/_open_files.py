"""As many open files as the connections of a large job need."""

import sys
from contextlib import suppress

# Of a rank to each other one: in the groups of a training, and on rank 0 also to its store.
_FILES_PER_RANK = 8
# Of the training itself: data, logs, workers. With the usual 1024, jobs of up to 64 ranks are left
# as they are.
_OTHER_FILES = 512
# What rank 0 has open at least, counted: three connections to each rank.
_LEAST_PER_RANK = 3


def provide_files(num_ranks: int) -> str | None:
    """Raise the number of files that this process may open, as far as the system lets it.

    Systems give processes 1024, for the sake of programs that cannot count further, and let them
    ask for more; beyond 336 ranks, rank 0 alone has so many connections.

    Args:
        num_ranks: How many ranks there are.

    Returns:
        What to say if that does not suffice, else ``None``.
    """
    if sys.platform == "win32":
        return None
    import resource  # noqa: PLC0415 (not on Windows)

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return None
    wanted = _OTHER_FILES + _FILES_PER_RANK * num_ranks
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if allowed < wanted:
        # macOS says that there is no limit, and has one.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
            allowed = wanted
    if allowed >= _LEAST_PER_RANK * num_ranks:
        return None
    return (
        f"A job of {num_ranks} ranks needs up to {_LEAST_PER_RANK * num_ranks} open files in a "
        f"process, and this system allows {allowed} (ulimit -Hn); ranks may not reach each other. "
        "Ask for a higher limit where the job is started."
    )
