"""Limits of checkpoints, and of saving often enough."""

from collections.abc import Iterator

from scaling.model.checkpoint import gathered_seconds, parts_seconds
from scaling.model.constants import Constants
from scaling.model.estimate import estimate
from scaling.model.job import Job
from scaling.model.limit_types import Demand, MakeCluster, always

_LOST = 0.1


def storage_limits(job: Job, own: Constants, make_cluster: MakeCluster) -> Iterator[Demand]:
    """Yield what storage and host memory can take."""
    size = job.checkpoint_bytes
    in_parts = "shard the model: each rank then writes what it holds"
    yield Demand(
        "memory of a machine: a checkpoint gathered on rank 0",
        always(size),
        always(own.host_memory),
        "rank 0 is killed",
        in_parts,
    )
    yield Demand(
        "time of rank 0 to write a gathered checkpoint",
        lambda ranks: gathered_seconds(size, make_cluster(ranks)),
        always(job.timeout_s),
        "the others time out in the collective in which they wait",
        in_parts,
    )
    yield Demand(
        "time of all ranks to write their parts",
        lambda ranks: parts_seconds(size, make_cluster(ranks)),
        always(job.timeout_s),
        "ranks that are done time out",
        "async_save=True: training goes on meanwhile",
    )
    yield Demand(
        "memory of a machine: every rank reads the whole to resume",
        lambda ranks: size * make_cluster(ranks).local_ranks,
        always(own.host_memory),
        "ranks are killed when they resume",
        "torch.distributed.checkpoint reads a rank's own part (load_sharded_state_dict)",
    )
    yield Demand(
        "a tenth of the time lost to failures and checkpoints",
        lambda ranks: estimate(job, ranks, own).failures.lost,
        always(_LOST),
        "more ranks train little more",
        "async_save=True, parts, and restarts without the scheduler (--max-restarts)",
    )
