"""Ask all ranks where they are, and gather their answers."""

import time
from collections.abc import Callable

from mm_dist._hang_report._board import REQUESTS, Board
from mm_dist._hang_report._groups import default_group_name
from mm_dist._hang_report._sample import Sample, decode_sample
from mm_dist._hang_report._survey import Peer, Survey
from mm_dist._torch_private import group_members

# Between two rounds over the ranks that have not answered yet.
_PAUSE_S = 0.05


def ask_ranks(
    board: Board,
    own_rank: int,
    world_size: int,
    take_own: Callable[[int], Sample],
    limit_s: float,
) -> Survey:
    """Ask every rank for a sample, and return what came.

    Ranks are asked one by one, by this rank alone: the cost is linear in their number.

    Args:
        board: The connection to the store.
        own_rank: The rank that asks.
        world_size: How many ranks there are.
        take_own: Takes this rank's own sample, given the number of the request.
        limit_s: How long to wait for answers.
    """
    deadline = time.monotonic() + limit_s
    request = board.count(REQUESTS, 1)
    peers = {own_rank: Peer(own_rank, take_own(request), is_answer=True)}
    open_ranks = [rank for rank in range(world_size) if rank != own_rank]
    while open_ranks:
        open_ranks = [rank for rank in open_ranks if not _hear(board, rank, request, peers)]
        if time.monotonic() >= deadline:
            break
        time.sleep(_PAUSE_S)
    peers.update((rank, _read_rank(board, rank, request)) for rank in open_ranks)
    ordered = {rank: peers[rank] for rank in range(world_size)}
    return Survey(ordered, group_members(), default_group_name())


def _hear(board: Board, rank: int, request: int, peers: dict[int, Peer]) -> bool:
    peer = _read_rank(board, rank, request)
    if peer.is_answer or peer.has_left:
        peers[rank] = peer
    return rank in peers


def _read_rank(board: Board, rank: int, request: int) -> Peer:
    note = board.read_note(rank)
    if note.num_answers == 0:
        return Peer(rank, has_left=note.has_left, last_iteration=note.iteration)
    sample = decode_sample(board.read_sample(rank))
    return Peer(rank, sample, is_answer=note.num_answers > request)
