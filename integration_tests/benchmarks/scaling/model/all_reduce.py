"""How long an all-reduce takes.

Both formulas are those by which NCCL itself compares its algorithms (``ncclTopoTuneModel`` in
``src/graph/tuning.cc``): a time per step, of which those between machines take longer, and the
bytes that the narrowest link has to carry.
"""

from scaling.model.cluster import Cluster


def ring_all_reduce(size: float, cluster: Cluster) -> float:
    """Return the seconds of a ring: ``2 (n-1)/n * size/bandwidth`` and ``2 (n-1)`` steps.

    In the first half of the steps every rank adds a part of what its neighbour sends to its own, in
    the second half the sums go round. No algorithm moves fewer bytes per rank (Patarasu and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
    Comput. 69, 2009); the steps grow with the ranks (Thakur, Rabenseifner and Gropp, "Optimization
    of collective communication operations in MPICH", Int. J. High Perform. Comput. Appl. 19, 2005).

    Args:
        size: Bytes of the tensor.
        cluster: The ranks.
    """
    steps = 2 * (cluster.ranks - 1)
    between_nodes = 2 * (cluster.nodes - 1)
    latency = (
        steps - between_nodes
    ) * cluster.constants.node_latency + between_nodes * cluster.constants.network_latency
    return steps / cluster.ranks * size / cluster.bandwidth + latency


def tree_all_reduce(size: float, cluster: Cluster) -> float:
    """Return the seconds of a double binary tree: ``2 * size/bandwidth``, ``2 log2`` steps.

    Each of two trees takes half of the bytes up and down again, a piece after the other, so that
    every link is busy in both directions (Sanders, Speck and Traeff, "Two-tree algorithms for full
    bandwidth broadcast, reduction and scan", Parallel Comput. 35, 2009). The trees are between
    machines; the ranks on one machine are a chain.

    Args:
        size: Bytes of the tensor.
        cluster: The ranks.
    """
    if cluster.ranks == 1:
        return 0.0
    depth = (cluster.nodes - 1).bit_length()
    latency = (
        cluster.local_ranks - 1
    ) * cluster.constants.node_latency + depth * cluster.constants.network_latency
    return 2 * size / cluster.bandwidth + 2 * latency


def fastest_all_reduce(size: float, cluster: Cluster, backend: str) -> tuple[float, str]:
    """Return the seconds of what the backend would choose, and its name.

    gloo has the ring only; NCCL takes the one for which its own model expects less.

    Args:
        size: Bytes of the tensor.
        cluster: The ranks.
        backend: ``"gloo"`` or ``"nccl"``.
    """
    ring = ring_all_reduce(size, cluster)
    tree = tree_all_reduce(size, cluster)
    return (tree, "tree") if backend == "nccl" and tree < ring else (ring, "ring")
