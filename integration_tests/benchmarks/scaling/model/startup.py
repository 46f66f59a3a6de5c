"""How long it takes until all ranks have found each other."""

from dataclasses import dataclass

from scaling.model.cluster import Cluster
from scaling.model.job import Job

# Counted at the store while ranks call init_dist; see the benchmark scale_constants.
CONNECTIONS_PER_RANK, EXCHANGES_PER_RANK = 2, 12
# What a rank of gloo tells the others: its address, the name of its machine, and a number of eight
# bytes for each other rank (gloo/transport/tcp/context.cc).
GLOO_ADDRESS_BYTES, GLOO_NUMBER_BYTES = 168, 8
# To wait for a value and to get it are two questions (TCPStore.cpp, doGet).
_EXCHANGES_PER_VALUE = 2
# torch's TORCH_NCCL_RANKS_PER_ROOT.
_RANKS_PER_ROOT = 128
# Rings through which NCCL passes addresses, then what the ranks are, then what they have found
# (bootstrap.cc, init.cc); each goes both ways at once, so that it takes n/2 steps.
_NCCL_RINGS = 3


@dataclass(frozen=True)
class Startup:
    """The parts of a start, in seconds, one after the other.

    Attributes:
        imports: Until Python has loaded torch.
        store: Until all ranks have met in rank 0's store.
        group: Until the backend has connected them.
        objects: Until a job of NCCL has the gloo group beside it through which objects travel; it
            is made when the first object is sent. 0 with gloo, whose own group carries them.
    """

    imports: float
    store: float
    group: float
    objects: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.imports + self.store + self.group + self.objects


def estimate_startup(cluster: Cluster, job: Job) -> Startup:
    """Return how long each part takes."""
    is_nccl = job.backend == "nccl"
    gloo = gloo_seconds(cluster, num_peers(cluster.ranks, job))
    return Startup(
        imports=import_seconds(cluster, is_shared=job.is_environment_shared),
        store=store_seconds(cluster),
        group=nccl_seconds(cluster) if is_nccl else gloo,
        objects=gloo if is_nccl else 0.0,
    )


def import_seconds(cluster: Cluster, *, is_shared: bool) -> float:
    """Return the seconds of the imports.

    From a local disk it is what one process takes. From storage that all machines share, each
    machine asks for every file (its own ranks then find it cached), and the slowest of three waits:
    the server of names, the storage for all machines, a machine's own line to it.
    """
    own = cluster.constants
    if not is_shared:
        return own.import_seconds
    names = cluster.nodes * own.import_files / own.metadata_rate
    everybody = cluster.nodes * own.import_bytes / own.storage_read_bandwidth
    one_node = own.import_bytes / own.node_read_bandwidth
    return own.import_seconds + max(names, everybody, one_node)


def store_seconds(cluster: Cluster) -> float:
    """Return the seconds until all ranks have met: one thread serves all of them in turn.

    ``n * (connections * time of one + questions * time of one)``, and each rank's own chain of
    questions.
    """
    own = cluster.constants
    if cluster.ranks == 1:
        return 0.0
    connecting = CONNECTIONS_PER_RANK * own.store_connection
    asking = EXCHANGES_PER_RANK * own.store_exchange
    return cluster.ranks * (connecting + asking) + EXCHANGES_PER_RANK * own.round_trip


def num_peers(ranks: int, job: Job) -> int:
    """Return with how many others each rank of gloo is connected.

    With all; or only with those it talks to: two in a ring, and one for each level of a tree.
    """
    if not job.is_gloo_lazy:
        return ranks - 1
    return min(ranks - 1, 2 + (ranks - 1).bit_length())


def gloo_seconds(cluster: Cluster, peers: int) -> float:
    """Return the seconds in which gloo connects every rank with ``peers`` others.

    Every rank asks the store for the values of these, and each value has a number for every rank
    if they are all: ``2 n^2`` questions and ``8 n^3`` bytes pass through the store's thread. Then
    each rank opens or accepts its connections.
    """
    own, ranks = cluster.constants, cluster.ranks
    if ranks == 1:
        return 0.0
    is_mesh = peers == ranks - 1
    # Of a mesh, a rank asks for its own value as well.
    values = ranks * (ranks if is_mesh else peers)
    size = gloo_value_bytes(ranks) if is_mesh else GLOO_ADDRESS_BYTES
    questions = ranks + _EXCHANGES_PER_VALUE * values
    in_store = questions * own.store_exchange + values * size / own.store_bandwidth
    return in_store + peers * own.gloo_pair


def gloo_value_bytes(ranks: int) -> int:
    """Return the size of what each rank writes into the store if all are connected with all."""
    return GLOO_ADDRESS_BYTES + GLOO_NUMBER_BYTES * ranks


def nccl_seconds(cluster: Cluster) -> float:
    """Return the seconds in which NCCL finds its ring; not how long it builds its channels.

    Every rank gets the roots' addresses from the store, a root serves its 128 ranks one after the
    other, and what the ranks know goes round the ring three times.
    """
    own, ranks = cluster.constants, cluster.ranks
    if ranks == 1:
        return 0.0
    in_store = ranks * _EXCHANGES_PER_VALUE * own.store_exchange
    at_root = min(ranks, _RANKS_PER_ROOT) / own.nccl_root_rate
    return in_store + at_root + _NCCL_RINGS * ranks / 2 * own.round_trip
