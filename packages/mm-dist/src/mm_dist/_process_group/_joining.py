"""Join the group of all ranks: meet, then let torch connect them."""

import atexit
import inspect
import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from mm_dist._devices import set_current_device
from mm_dist._errors import LaunchError
from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._process_group._ending import end_at_exit, restore_variables
from mm_dist._process_group._timeouts import default_timeout, read_group_timeout
from mm_dist._rendezvous._meeting import meet
from mm_dist._rendezvous._store import StoreAddress, is_kept_by_launcher, open_store
from mm_dist._state import DistInfo, OwnGroup, state
from mm_dist.diagnose._error import write_error_file
from mm_dist.diagnose._failure import install_failure_hook
from mm_dist.diagnose._failure_board import FailureBoard

# torch's type information does not list all of its names.
_DIST: Any = dist
_logger = logging.getLogger(__name__)


def join_group(
    info: DistInfo,
    environment: LaunchEnvironment,
    timeout: timedelta | None,
    variables: Mapping[str, str],
    settings: Mapping[str, str],
) -> OwnGroup:
    """Create the default group, and remember it in the state of this process."""
    _logger.debug("joining %s, read from %s", info, dict(environment.sources))
    if not dist.is_available():
        raise LaunchError(
            f"launcher={info.launcher!r} needs torch.distributed, which this torch was built "
            "without; install another build, or use launcher='none'."
        )
    set_current_device(info.device)
    former_hook, replaced = sys.excepthook, _set_variables(environment, variables)
    store, address = None, None
    try:
        if info.backend != "mpi":  # MPI connects its ranks by itself
            address = StoreAddress(str(environment.master_addr), int(environment.master_port or 0))
            store = _meet_in_store(info, environment, timeout, address, settings)
        dist.init_process_group(**_group_arguments(info, timeout, store))
    except (RuntimeError, ValueError, OSError) as error:
        restore_variables(replaced)
        failure: Exception = error
        if not isinstance(error, LaunchError):
            failure = LaunchError(
                f"Rank {info.rank} of {info.world_size} could not join the process group at "
                f"{environment.master_addr}:{environment.master_port} with backend "
                f"{info.backend!r}: {error} - check that rank 0 runs there, that the port is free "
                "on its machine (choose another one with port= or MASTER_PORT), and that all ranks "
                "were started."
            )
            failure.__cause__ = error
        # For the launcher: there is no group yet with a hook for it.
        with suppress(Exception):
            write_error_file(failure, {"is_consequence": False}, f"mm-dist: {failure}")
        raise failure from failure.__cause__
    joined = replace(info, timeout=read_group_timeout(dist.group.WORLD) or timeout)
    own = OwnGroup(dist.group.WORLD, joined, replaced, environment, store, address)
    is_host = info.rank == 0 and not is_kept_by_launcher()
    board = FailureBoard(own.address, own.info, state.num_joined)
    own.restore_hook = install_failure_hook(own.info, board, former=former_hook, is_host=is_host)
    state.own, state.failed, state.local_group, state.kept_store = own, None, None, None
    atexit.register(end_at_exit)
    _logger.debug("joined with a timeout of %s", own.info.timeout)
    return own


def _set_variables(
    environment: LaunchEnvironment, more: Mapping[str, str]
) -> dict[str, str | None]:
    """Set what torch's ``env://`` rendezvous reads; return the former values of what changed."""
    wanted = {
        **more,
        "MASTER_ADDR": str(environment.master_addr),
        "MASTER_PORT": str(environment.master_port),
        "RANK": str(environment.rank),
        "LOCAL_RANK": str(environment.local_rank),
        "WORLD_SIZE": str(environment.world_size),
    }
    replaced = {key: os.environ.get(key) for key in wanted if os.environ.get(key) != wanted[key]}
    os.environ.update(wanted)
    return replaced


def _meet_in_store(
    info: DistInfo,
    environment: LaunchEnvironment,
    timeout: timedelta | None,
    address: StoreAddress,
    settings: Mapping[str, str],
) -> Any:
    limit = timeout or default_timeout(str(info.backend))
    end = time.monotonic() + limit.total_seconds()
    store = open_store(environment, limit.total_seconds())
    # Not before: a rank that did not find the address, and tries again, has missed no meeting.
    state.num_joined += 1
    board = FailureBoard(address, info, state.num_joined)
    while True:
        try:
            if not is_kept_by_launcher():
                board.enter(store)
            meet(store, environment, state.num_joined, limit.total_seconds(), settings)
        except LaunchError:
            raise
        except RuntimeError:
            left_s = end - time.monotonic()
            if info.rank == 0 or is_kept_by_launcher() or left_s <= 0:
                raise
            _logger.debug("the store has ended; looking for that of the next rank 0", exc_info=True)
            store = open_store(environment, left_s)
        else:
            store.set_timeout(limit)
            return store


def _group_arguments(info: DistInfo, timeout: timedelta | None, store: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"backend": info.backend}
    if store is not None:
        # A later group, be it torch's own at the same port, must not find what a former one has
        # left there, such as addresses.
        arguments["store"] = _DIST.PrefixStore(f"mm_dist/group/{state.num_joined}", store)
        arguments.update(rank=info.rank, world_size=info.world_size)
    if timeout is not None:
        arguments["timeout"] = timeout
    is_nccl = info.backend == "nccl"
    if is_nccl and "device_id" in inspect.signature(dist.init_process_group).parameters:
        # Without it NCCL guesses the device of barriers, and warns. With it torch asks every other
        # group for that device too, and a gloo group serves none but the CPU and CUDA.
        arguments["device_id"] = info.device
    return arguments
