"""How many ranks there are, on how many machines, and what lies between them."""

from dataclasses import dataclass
from functools import cached_property

from scaling.model.constants import Constants


@dataclass(frozen=True)
class Cluster:
    """Ranks on machines that are alike.

    Attributes:
        ranks: How many there are, at least 1.
        ranks_per_node: How many a machine takes.
        constants: What the machines and the network are like.
    """

    ranks: int
    ranks_per_node: int
    constants: Constants

    @cached_property
    def nodes(self) -> int:
        """How many machines there are; the last one may be filled in part."""
        return -(-self.ranks // self.ranks_per_node)

    @cached_property
    def local_ranks(self) -> int:
        """How many ranks the fullest machine has."""
        return min(self.ranks, self.ranks_per_node)

    @cached_property
    def bandwidth(self) -> float:
        """What a ring or a tree through all ranks carries, in bytes per second.

        The narrowest place: a rank's link to the next one on its machine, or all adapters of a
        machine together, which several rings or trees share out among them.
        """
        own = self.constants
        if self.nodes == 1:
            return own.node_bandwidth
        return min(own.node_bandwidth, own.network_bandwidth)
