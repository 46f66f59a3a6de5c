"""Limits of connections, collectives and memory."""

from collections.abc import Iterator

from scaling.model.all_reduce import ring_all_reduce
from scaling.model.constants import Constants
from scaling.model.job import Job
from scaling.model.limit_types import Demand, MakeCluster, always
from scaling.model.startup import gloo_seconds, import_seconds, num_peers

# torch's DistributedDataParallel: 25 MiB of gradients at a time.
_BUCKET_BYTES = 25 * 2**20
# What a rank has open beside connections, counted after init_dist.
_OTHER_FILES = 9


def network_limits(job: Job, own: Constants, make_cluster: MakeCluster) -> Iterator[Demand]:
    """Yield what connections and collectives can take."""
    whose = "gloo" if job.backend == "gloo" else "gloo's group for objects"
    lazily = "TORCH_GLOO_LAZY_INIT=1 (--lazy-gloo) connects only ranks that talk"
    yield Demand(
        f"open files of every rank: {whose}",
        lambda ranks: _OTHER_FILES + num_peers(ranks, job),
        always(own.most_files),
        "the group cannot be made",
        f"init_dist raises its limit as far as it may; {lazily}",
    )
    yield Demand(
        f"time to connect everybody: {whose}",
        lambda ranks: gloo_seconds(make_cluster(ranks), num_peers(ranks, job)),
        always(job.timeout_s),
        "the group times out while it is made",
        lazily,
    )
    yield Demand(
        "memory of a machine: all_gather_object",
        lambda ranks: job.object_bytes * ranks * make_cluster(ranks).local_ranks,
        always(own.host_memory),
        "every rank holds the objects of all",
        "gather_object and collect_results keep them on one rank; chunks of 32 MiB are all else",
    )
    yield Demand(
        "steps of a ring: 25 MiB of gradients",
        lambda ranks: ring_all_reduce(0.0, make_cluster(ranks)),
        lambda ranks: (
            ring_all_reduce(_BUCKET_BYTES, make_cluster(ranks))
            - ring_all_reduce(0.0, make_cluster(ranks))
        ),
        "all-reduces take as long as their steps, not as their bytes",
        "NCCL takes trees; bucket_cap_mb, accumulation, fewer ranks per group (hybrid sharding)",
    )
    if job.is_environment_shared:
        yield _import_demand(job, make_cluster)


def _import_demand(job: Job, make_cluster: MakeCluster) -> Demand:
    # What one process alone would take is no matter of scale.
    base = import_seconds(make_cluster(1), is_shared=True)
    return Demand(
        "time of all machines to import torch",
        lambda ranks: import_seconds(make_cluster(ranks), is_shared=True) - base,
        always(job.timeout_s),
        "the first ranks stop waiting for the last",
        "an image or a copy of the environment on each machine",
    )
