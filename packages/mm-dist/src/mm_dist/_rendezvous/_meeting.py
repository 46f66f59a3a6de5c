"""Let the ranks of one job meet in the store, and name those that do not come."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._message import format_ranks
from mm_dist._rendezvous._store import is_kept_by_launcher, stranger_error

# What the ranks of a job share and other jobs do not have.
_JOB_VARIABLES = {
    "pytorch": ("TORCHELASTIC_RUN_ID",),
    "slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    "mpi": ("PMIX_NAMESPACE", "I_MPI_HYDRA_UUID"),
}
# Rank 0 signs its store at once; a store that stays unsigned for so long is not rank 0's.
_SIGNATURE_S = 20.0
_PAUSE_S = 0.005
# How long rank 0, whose store ends with it, lets the others read what differs.
_READ_GRACE_S = 3.0


def meet(
    store: Any,
    environment: LaunchEnvironment,
    number: int,
    limit_s: float,
    settings: Mapping[str, str],
) -> None:
    """Wait until all ranks are there, and check that they ask for the same."""
    # Asked by counting up by 0: that neither blocks nor prints, in every version of torch.
    end = time.monotonic() + limit_s
    rank, prefix = environment.rank, f"mm_dist/{number}"
    is_unique = not is_kept_by_launcher()
    if is_unique:
        _check_host(store, environment)
    # More than one where a process of this rank was here before, and has been restarted.
    incarnation = store.add(f"{prefix}/rank/{rank}", 1)
    is_first = incarnation == 1 or not is_unique
    # Before this rank counts as present, it counts among those that ask for the same.
    equals = f"{prefix}/equals/{_hash(dict(settings))}"
    store.add(equals, int(is_first))
    if rank == 0:
        store.set(f"{prefix}/settings", json.dumps(dict(settings)))
    if is_first and store.add(f"{prefix}/count", 1) == environment.world_size:
        store.add(f"{prefix}/complete", 1)

    def check_newest() -> None:
        if is_unique and store.add(f"{prefix}/rank/{rank}", 0) > incarnation:
            raise _duplicate_error(environment)

    size = environment.world_size
    if not _wait_for(store, f"{prefix}/complete", end, size, check_newest):
        raise _absence_error(store, prefix, environment, limit_s)
    if is_unique and store.add(f"{prefix}/claim/{rank}", 1) > 1:
        raise _duplicate_error(environment)
    if store.add(equals, 0) < size:
        _raise_difference(store, prefix, environment, settings)


def _check_host(store: Any, environment: LaunchEnvironment) -> None:
    """Sign the store on rank 0; on others, check that it is signed for this job."""
    names = _JOB_VARIABLES.get(environment.launcher, ())
    facts = [environment.launcher, str(environment.world_size)]
    facts += [os.environ.get(name, "") for name in names]
    # One key for all meetings: rank 0 may come to the next one long after the others.
    key = f"mm_dist/host/{_hash(facts)}"
    if environment.rank == 0:
        store.add(key, 1)
    elif not _wait_for(store, key, time.monotonic() + _SIGNATURE_S, environment.world_size):
        host, port = str(environment.master_addr), int(environment.master_port or 0)
        raise stranger_error(environment.rank, host, port, "it is the store of another job")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _wait_for(
    store: Any, key: str, end: float, num_ranks: int, check: Callable[[], None] = lambda: None
) -> bool:
    pause_s = _PAUSE_S
    while store.add(key, 0) == 0:
        check()
        if time.monotonic() >= end:
            return False
        time.sleep(pause_s)
        # A few ranks may poll often; thousands would overload the store.
        pause_s = min(1.5 * pause_s, num_ranks * _PAUSE_S, 0.5)
    return True


def _raise_difference(
    store: Any, prefix: str, environment: LaunchEnvironment, settings: Mapping[str, str]
) -> None:
    """Raise, on all ranks, what one asks for that rank 0 does not."""
    rank, world_size = environment.rank, environment.world_size
    expected = json.loads(bytes(store.get(f"{prefix}/settings")))
    different = [name for name in expected if settings.get(name) != expected[name]]
    if different:
        name = different[0]
        text = (
            f"The ranks ask for different groups: {name} is {expected[name]} on rank 0, and "
            f"{settings.get(name)} on rank {rank} (host {socket.gethostname()}). Give all ranks "
            "the same arguments and environment variables."
        )
        store.set(f"{prefix}/difference", text)
    difference = bytes(store.get(f"{prefix}/difference")).decode()
    store.add(f"{prefix}/num_told", 1)
    end = time.monotonic() + _READ_GRACE_S
    while rank == 0 and store.add(f"{prefix}/num_told", 0) < world_size and time.monotonic() < end:
        time.sleep(_PAUSE_S)
    raise LaunchError(difference)


def _duplicate_error(environment: LaunchEnvironment) -> LaunchError:
    return LaunchError(
        f"Rank {environment.rank} of {environment.world_size} is on {socket.gethostname()}, but "
        f"another process has joined at {environment.master_addr}:{environment.master_port} as "
        "the same rank. Either two jobs use one port (choose another one with MASTER_PORT or "
        f"port=), or RANK is wrong on a machine (read from {environment.sources.get('rank')}), or "
        "one of the two was restarted after the ranks had met: then restart all."
    )


def _absence_error(
    store: Any, prefix: str, environment: LaunchEnvironment, limit_s: float
) -> LaunchError:
    size = environment.world_size
    there = int(store.add(f"{prefix}/count", 0))
    who = ""
    if environment.rank == 0:
        absent = [rank for rank in range(size) if store.add(f"{prefix}/rank/{rank}", 0) == 0]
        who = f"; missing: rank {format_ranks(absent)}"
    return LaunchError(
        f"Rank {environment.rank} of {size}: {there} of {size} ranks came to "
        f"{environment.master_addr}:{environment.master_port} within {limit_s:g} s{who}. Check "
        "that all were started with the same number of processes, and that none has failed; "
        "raise timeout= if some start late."
    )
