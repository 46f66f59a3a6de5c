"""The store through which ranks find each other: torch's, opened by rank 0 or by the launcher."""

import math
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._rendezvous._address import (
    is_listening,
    resolve,
    wait_for_listener,
)

# torch's type information does not list these names, and a build may lack them.
_DIST: Any = dist
# Longer than any store takes to answer once its port accepts connections.
_ANSWER_S = 20.0
# For short questions, most of them on the way out. A machine that is gone must not hold them up for
# long; but torch's store looks up the name of whoever connects and answers nobody meanwhile, and a
# lost message to the name server takes 5 s.
_REACH_S, _SHORT_ANSWER_S = 3.0, 8.0
_Result = TypeVar("_Result")
PORT_IS_TAKEN = ("eaddrinuse", "address already in use")


@dataclass(frozen=True)
class StoreAddress:
    """Where the store can be reached, for short connections beside that of the group."""

    host: str
    port: int

    def connect(self, limit_s: float = _SHORT_ANSWER_S) -> Any | None:
        """Return a connection of its own, ``None`` if the store cannot be reached."""
        try:
            addresses = resolve(self.host, self.port, _REACH_S)
            if not is_listening(addresses, _REACH_S):
                return None
            return _open(self.host, self.port, limit_s, is_server=False)
        except (LaunchError, RuntimeError, ValueError, OSError):
            return None


def is_kept_by_launcher() -> bool:
    """Return whether torch's launcher keeps the store, so that rank 0 opens none."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)


def store_prefix(number: int) -> str:
    """Return the prefix of the keys about group ``number`` that are not in torch's prefix store."""
    # The launcher's store outlives a failed attempt, and so do the keys of that attempt.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") if is_kept_by_launcher() else None
    return f"mm_dist/{number}" if attempt is None else f"mm_dist/{number}/attempt/{attempt}"


def open_store(environment: LaunchEnvironment, limit_s: float) -> Any:
    """Open the store on rank 0, or connect to it from the others."""
    host, port = str(environment.master_addr), int(environment.master_port or 0)
    if environment.rank == 0 and not is_kept_by_launcher():
        resolve(host, port)  # a wrong name is an error on rank 0, too
        try:
            # By a name that always leads here: torch waits long for an address that does not.
            return _open("localhost", port, limit_s, is_server=True)
        except (RuntimeError, OSError) as error:
            if not any(words in str(error).lower() for words in PORT_IS_TAKEN):
                raise
            raise LaunchError(
                f"Rank 0 cannot listen on port {port} of {socket.gethostname()}: another program "
                "uses it. Choose another one for all ranks with MASTER_PORT or port= (torchrun "
                "--master_port=N), or have a free one chosen: torchrun --standalone."
            ) from error
    start = time.monotonic()
    wait_for_listener(host, port, limit_s, environment.rank)
    if is_kept_by_launcher():
        # torch knows under which names each of its versions keeps one attempt from the next.
        left = timedelta(seconds=max(start + limit_s - time.monotonic(), 1.0))
        place = (environment.rank, environment.world_size)
        return next(_DIST.rendezvous("env://", *place, timeout=left))[0]
    return _connect_in_time(host, port, environment.rank)


def _connect_in_time(host: str, port: int, rank: int) -> Any:
    """Connect to rank 0, in a thread: what listens there may be no store, and never answer."""

    def connect() -> Any:
        store = _open(host, port, _ANSWER_S, is_server=False)
        store.num_keys()  # not every version notices a missing answer by itself
        return store

    store = call_in_time(_ANSWER_S, connect)
    if store is None:
        raise stranger_error(rank, host, port, "it does not answer as torch's store does")
    return store


def call_in_time(limit_s: float, function: Callable[[], _Result]) -> _Result | None:
    """Call a function in a thread; return ``None`` if it raises, or takes longer than the limit."""
    outcome: list[_Result] = []

    def call() -> None:
        with suppress(Exception):
            outcome.append(function())

    thread = threading.Thread(target=call, name="mm_dist-call", daemon=True)
    try:
        thread.start()
        thread.join(limit_s)
    except RuntimeError:  # Python 3.12 starts no thread once the interpreter ends
        call()
    return outcome[0] if outcome else None


def stranger_error(rank: int, host: str, port: int, reason: str) -> LaunchError:
    """Return the error for a port where something else listens than rank 0 of this job."""
    return LaunchError(
        f"Rank {rank} reached {host}:{port}, but the process listening there is not rank 0 of this "
        f"job: {reason}. Rank 0 could not open that port, as its own message says; choose another "
        "one for all ranks with MASTER_PORT or port=."
    )


def _open(host: str, port: int, limit_s: float, *, is_server: bool) -> Any:
    return _DIST.TCPStore(
        host,
        port,
        is_master=is_server,
        timeout=timedelta(seconds=math.ceil(limit_s)),  # older torch drops fractions
        wait_for_workers=False,  # otherwise rank 0 could sign the store only once all have come
        multi_tenant=is_server,
    )
