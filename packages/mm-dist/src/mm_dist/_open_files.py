"""The limit on open files: every rank connects to the store, and each of gloo to all others."""

from contextlib import suppress


def provide_files(num_ranks: int) -> None:
    """Raise the number of files that this process may open, as far as the system lets it."""
    # ImportError on Windows; ValueError on macOS, which says that there is no limit, and has one.
    with suppress(ImportError, ValueError, OSError):
        import resource  # noqa: PLC0415 (not on Windows)

        allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        # 512 for the training itself: data, logs, workers. Jobs of 64 ranks are left as they are.
        wanted = min(512 + 8 * num_ranks, most if most != resource.RLIM_INFINITY else 2**20)
        if allowed != resource.RLIM_INFINITY and allowed < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
