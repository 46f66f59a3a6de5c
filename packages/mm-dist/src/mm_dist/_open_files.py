"""As many open files as the connections of a large job need."""

import sys
from contextlib import suppress

# Per other rank, and of the training itself: data, logs, workers. With the usual 1024, jobs of up
# to 64 ranks are left as they are.
_FILES_PER_RANK, _OTHER_FILES = 8, 512


def provide_files(num_ranks: int) -> None:
    """Raise the number of files that this process may open, as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (not on Windows)

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHER_FILES + _FILES_PER_RANK * num_ranks
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        # macOS says that there is no limit, and has one.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
