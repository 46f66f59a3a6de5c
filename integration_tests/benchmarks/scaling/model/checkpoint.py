"""How long a checkpoint takes to be written, and to be read again."""

from dataclasses import dataclass

from scaling.model.cluster import Cluster
from scaling.model.job import Job


@dataclass(frozen=True)
class Checkpoint:
    """Times in seconds.

    Attributes:
        gathered: Until the main process has written the whole, gathered from all ranks.
        in_parts: Until each rank has written what it holds, to a file of its own.
        pause: How long training waits if a part is copied, and written while training goes on.
        reading: Until every rank has read the whole, as mm-runner resumes.
    """

    gathered: float
    in_parts: float
    pause: float
    reading: float


def estimate_checkpoint(cluster: Cluster, job: Job) -> Checkpoint:
    """Return how long each way takes."""
    size = job.checkpoint_bytes
    return Checkpoint(
        gathered=gathered_seconds(size, cluster),
        in_parts=parts_seconds(size, cluster),
        pause=size / cluster.ranks / cluster.constants.copy_bandwidth,
        reading=reading_seconds(size, cluster),
    )


def gathered_seconds(size: float, cluster: Cluster) -> float:
    """Return the seconds in which rank 0 gets everything and writes it.

    ``(n-1)/n * size/bandwidth`` for the gathering (a ring, as in an all-gather), the copy to host
    memory, and one writer's speed, which no number of ranks improves.
    """
    own = cluster.constants
    gathering = (cluster.ranks - 1) / cluster.ranks * size / cluster.bandwidth
    writing = size / min(own.save_bandwidth, own.node_write_bandwidth, own.storage_write_bandwidth)
    return gathering + size / own.copy_bandwidth + writing + own.sync_seconds


def parts_seconds(size: float, cluster: Cluster) -> float:
    """Return the seconds in which each rank writes ``size/n``, and rank 0 a file that names them.

    The slowest of three: a rank itself, a machine's line for its ranks, the storage for all. The
    storage creates the files one after the other; each rank tells rank 0 when its part is whole.
    """
    own = cluster.constants
    part = size / cluster.ranks
    writing = max(
        part / own.save_bandwidth,
        part * cluster.local_ranks / own.node_write_bandwidth,
        size / own.storage_write_bandwidth,
    )
    creating = (cluster.ranks + 1) / own.metadata_rate
    telling = cluster.ranks * own.store_exchange + own.round_trip
    return part / own.copy_bandwidth + writing + creating + telling + 2 * own.sync_seconds


def reading_seconds(size: float, cluster: Cluster) -> float:
    """Return the seconds until every rank has read the whole.

    The main process looks for the newest file that is whole, and reads it; then all others do. The
    ranks of a machine share what it has cached, so that each machine reads ``size`` once.
    """
    own = cluster.constants
    alone = size / min(own.node_read_bandwidth, own.storage_read_bandwidth)
    if cluster.ranks == 1:
        return alone
    together = max(alone, cluster.nodes * size / own.storage_read_bandwidth)
    return alone + together
