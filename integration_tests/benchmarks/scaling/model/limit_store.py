"""Limits of the store through which ranks meet, and of what talks through it."""

from collections.abc import Iterator

from scaling.model.constants import Constants
from scaling.model.job import Job
from scaling.model.limit_types import Demand, MakeCluster, always
from scaling.model.startup import CONNECTIONS_PER_RANK, gloo_value_bytes, store_seconds

# What rank 0 has open beside connections to others, counted after init_dist.
_OTHER_FILES = 18
# The hang report: a connection to ask, and one to see when the store ends.
_LISTENING_CONNECTIONS = 2
# The longest pause of a rank that waits for the others to come.
_POLL_S = 0.5
# MAX_PAYLOAD_LEN of TCPStoreLibUvBackend.cpp.
_VALUE_BYTES = 8 * 2**20
_MOST_FILES = "init_dist raises its limit as far as it may (ulimit -Hn)"


def store_limits(job: Job, own: Constants, make_cluster: MakeCluster) -> Iterator[Demand]:
    """Yield what the store's process and thread can take."""
    # Of each rank: to the store, and from the watch for failures that backends of devices need.
    lasting = 2 if job.backend == "nccl" else 1

    def rank_0_files(ranks: int) -> float:
        # gloo's gathers connect rank 0 with all others, lazily too.
        return _OTHER_FILES + lasting * ranks + ranks - 1

    yield Demand(
        "open files of torchrun, which keeps the store",
        lambda ranks: _OTHER_FILES + lasting * ranks,
        always(own.open_files),
        "ranks cannot connect, and time out",
        "mm-dist run raises its limit; ulimit -n before torchrun",
    )
    yield Demand(
        "open files of rank 0, which keeps the store otherwise",
        rank_0_files,
        always(own.most_files),
        "ranks cannot connect, and time out",
        _MOST_FILES,
    )
    yield Demand(
        "open files of rank 0 while all ranks wait for one",
        lambda ranks: rank_0_files(ranks) + _LISTENING_CONNECTIONS * ranks,
        always(own.most_files),
        "no hang report; the timeout comes as ever",
        _MOST_FILES,
    )
    yield Demand(
        "queue of the store's port",
        float,
        always(own.accept_queue),
        "connections are dropped; each is tried again after 1 s",
        "init_dist tries again until its timeout; raise net.core.somaxconn",
    )
    yield Demand(
        "time of all ranks to meet",
        lambda ranks: store_seconds(make_cluster(ranks)),
        always(job.timeout_s),
        "init_dist names ranks that have not come",
        f"a longer timeout; {CONNECTIONS_PER_RANK} connections a rank, however many there are",
    )
    yield Demand(
        "questions of ranks that wait for a late one",
        lambda ranks: ranks / _POLL_S * own.store_exchange,
        always(1.0),
        "the store answers later",
        "pauses between questions grow to 0.5 s",
    )
    yield Demand(
        "time of the hang report to ask every rank",
        lambda ranks: 2 * ranks * own.round_trip,
        lambda ranks: 0.75 * min(5.0 + 0.0005 * ranks, job.timeout_s / 4),
        "it names only the ranks that it has reached",
        "it begins earlier, the more ranks there are",
    )
    if not job.is_gloo_lazy:
        yield Demand(
            "size of what a rank of gloo writes into the store",
            lambda ranks: float(gloo_value_bytes(ranks)),
            always(_VALUE_BYTES),
            "the store closes the connection",
            "GLOO_ENABLE_RANK_AS_SEQUENCE_NUMBER=1",
        )
