"""Everything about one number of ranks."""

from dataclasses import dataclass

from scaling.model.all_reduce import fastest_all_reduce
from scaling.model.checkpoint import Checkpoint, estimate_checkpoint
from scaling.model.cluster import Cluster
from scaling.model.constants import Constants
from scaling.model.failures import Failures, estimate_failures
from scaling.model.job import Job
from scaling.model.startup import Startup, estimate_startup

_NUMBER_BYTES = 8


@dataclass(frozen=True)
class Estimate:
    """What a job of so many ranks takes, in seconds.

    Attributes:
        ranks: How many there are.
        nodes: On how many machines.
        startup: Until they have found each other.
        all_reduce: Of all gradients, by the algorithm that is named.
        algorithm: ``"ring"`` or ``"tree"``.
        agreement: An all-reduce of one number, as a barrier is.
        checkpoint: To write one, and to read it.
        failures: How often, and what they cost.
    """

    ranks: int
    nodes: int
    startup: Startup
    all_reduce: float
    algorithm: str
    agreement: float
    checkpoint: Checkpoint
    failures: Failures


def estimate(job: Job, ranks: int, constants: Constants) -> Estimate:
    """Return what a job of so many ranks takes.

    Args:
        job: What is trained.
        ranks: How many there are, at least 1.
        constants: What machines, network and storage are like.

    Example:
        >>> estimate(Job(), 8, Constants()).nodes
        1
    """
    cluster = Cluster(ranks, job.ranks_per_node, constants)
    startup = estimate_startup(cluster, job)
    checkpoint = estimate_checkpoint(cluster, job)
    all_reduce, algorithm = fastest_all_reduce(job.gradient_bytes, cluster, job.backend)
    stop = checkpoint.pause if job.is_saving_behind else checkpoint.in_parts
    restart = startup.total + checkpoint.reading
    return Estimate(
        ranks=ranks,
        nodes=cluster.nodes,
        startup=startup,
        all_reduce=all_reduce,
        algorithm=algorithm,
        agreement=fastest_all_reduce(_NUMBER_BYTES, cluster, job.backend)[0],
        checkpoint=checkpoint,
        failures=estimate_failures(ranks, constants.rank_mtbf, stop, checkpoint.in_parts, restart),
    )
