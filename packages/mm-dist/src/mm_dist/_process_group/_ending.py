"""End the group, at a clean exit or when asked to."""

import atexit
import gc
import os
import sys
import time
from collections.abc import Mapping

import torch.distributed as dist

from mm_dist._backends import backend_names
from mm_dist._devices import find_accelerator_of, synchronize_device
from mm_dist._rendezvous._store import is_kept_by_launcher
from mm_dist._state import OwnGroup, find_own_group, state

_THREAD_GRACE_S = 0.05
# How long a rank waits at the end for the others: to part together, and to keep the store.
_PARTING_LIMIT_S, _STORE_GRACE_S = 10.0, 3.0


def destroy_dist() -> None:
    """Destroy the process group that ``init_dist`` created; calling it again does nothing.

    A group that something else created is left alone, and so is the parent's in a forked child.
    Environment variables and the exception hook that ``init_dist`` replaced come back.
    """
    own = state.own
    if own is None or own.pid != os.getpid():
        return
    _end(own)
    if own.info.rank == 0:
        # Ranks that were faster may wait in it for the next group. It costs a port until then.
        state.kept_store = own.store
        atexit.register(_drop_store)


def _end(own: OwnGroup) -> None:
    atexit.unregister(end_at_exit)
    # First: it looks at the group, and uses the store.
    if own.hang_report is not None:
        own.hang_report.stop()
    if find_own_group() is not None:
        _leave(own)
    state.own = state.local_group = None
    if own.restore_hook is not None:
        own.restore_hook()
    restore_variables(own.replaced)


def _drop_store() -> None:
    atexit.unregister(_drop_store)
    state.kept_store = None


def end_at_exit() -> None:
    """Destroy the group when the interpreter ends, unless an exception ended the program."""
    own = state.own
    if own is None or own.pid != os.getpid():
        return
    from mm_dist.diagnose import _failure  # noqa: PLC0415 (only with a group)

    is_clean = _failure.is_interactive() or getattr(sys, "last_value", None) is None
    if state.failed is None and is_clean:
        _end(own)
        return
    if state.failed is None:
        # A hook that does not call ours has printed the exception.
        _failure.release_peers(own)
    if own.hang_report is not None:
        own.hang_report.end_thread()
    time.sleep(_THREAD_GRACE_S)


def _leave(own: OwnGroup) -> None:
    from mm_dist.diagnose._failure import abort_groups  # noqa: PLC0415 (only with a group)
    from mm_dist.diagnose._failure_board import FailureBoard  # noqa: PLC0415

    board = FailureBoard(own.address, own.info, state.num_joined)
    is_shared = own.info.world_size > 1 and own.address is not None
    _release_threads(own.info.backend)
    names = backend_names(str(own.info.backend))
    if is_shared and any(find_accelerator_of(name) is not None for name in names):
        # As with NCCL, a group is destroyed only when all ranks do so.
        if not board.leave(_PARTING_LIMIT_S):
            # The others go on without this rank: what it has begun is finished, no more.
            synchronize_device(own.info.device)
            abort_groups()
    elif is_shared:
        board.leave(0)
    if find_own_group() is not None:
        # gloo's connections break when the last reference goes.
        own.group = None
        dist.destroy_process_group()
    if is_shared:
        is_host = own.info.rank == 0 and not is_kept_by_launcher()
        # If the store went first, torch's threads on the other ranks would complain.
        board.confirm_left(_STORE_GRACE_S if is_host else 0)


def _release_threads(backend: str | None) -> None:
    """Let gloo's threads finish, as far as they can.

    After a collective they release objects of Python, for which they need the interpreter: torch
    2.6 deadlocks if the group is destroyed meanwhile, others abort if the interpreter has ended.
    """
    if backend is None or "gloo" not in backend:
        return
    # A wrapper that lies in a reference cycle keeps the group; its end joins the threads.
    gc.collect()
    time.sleep(_THREAD_GRACE_S)


def restore_variables(replaced: Mapping[str, str | None]) -> None:
    """Give environment variables their former values; ``None`` means that there was none."""
    for name, value in replaced.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
