"""How often something fails, how often to save, and how much time that costs."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Failures:
    """What failures mean for a job.

    Attributes:
        mtbf: From one failure anywhere in the job to the next, in seconds.
        interval: From one checkpoint to the next, so that least time is lost, in seconds.
        lost: The part of the time in which nothing is trained that lasts, from 0 to 1.
    """

    mtbf: float
    interval: float
    lost: float


def estimate_failures(
    ranks: int, rank_mtbf: float, stop: float, writing: float, restart: float
) -> Failures:
    """Return the interval ``sqrt(2 * stop * mtbf)``, and what is lost with it.

    A checkpoint costs ``stop`` in every interval. A failure costs half an interval, a checkpoint
    that was not whole yet, and the restart. (Young, "A first order approximation to the optimum
    checkpoint interval", Commun. ACM 17, 1974; Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", Future Gener. Comput. Syst. 22, 2006.)

    Args:
        ranks: How many there are; each fails independently, and ends the job.
        rank_mtbf: From one failure of a rank to the next, in seconds.
        stop: How long training stands still for a checkpoint.
        writing: How long it takes until that is whole; no other begins before.
        restart: From a failure to the first step after it.
    """
    mtbf = rank_mtbf / ranks
    interval = max(math.sqrt(2 * stop * mtbf), writing)
    behind = writing - min(stop, writing)
    lost = stop / interval + (interval / 2 + behind + restart) / mtbf
    return Failures(mtbf, interval, min(lost, 1.0))
