"""The line from a launcher to the process that watches it: I still talk with the others."""

import os
import pickle
import sys
import time
from contextlib import suppress
from typing import Any

from mm_dist._errors import TorchVersionError

BACKEND_NAME = "mm-dist"
TALKED, LOST = b".", b"L"
# Often enough for the shortest limit that is of use.
_PAUSE_S = 0.1


class Contact:
    """What a launcher says to its guard, by a pipe.

    Args:
        descriptor: Of the pipe's end for writing.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._said_at = -1.0
        self._state = b""

    def say_talked(self, state: bytes) -> None:
        """Say that the rendezvous has just answered.

        Args:
            state: The answer: the state of the rendezvous, as torch encodes it.
        """
        self._state = state
        if time.monotonic() >= self._said_at + _PAUSE_S:
            self._said_at = time.monotonic()
            self._write(TALKED)

    def say_lost(self) -> None:
        """Say that the others are lost, unless one of them has ended the run for all."""
        if not is_closed(self._state):
            self._write(LOST)

    def _write(self, word: bytes) -> None:
        # Nobody has to listen.
        with suppress(OSError):
            os.write(self._descriptor, word)


def register_rendezvous(contact: Contact) -> None:
    """Make ``--rdzv-backend=mm-dist`` stand for torch's c10d, with a word for each answer of it.

    Raises:
        TorchVersionError: If torch cannot be asked for it any more.
    """
    try:
        from torch.distributed.elastic.rendezvous import (  # noqa: PLC0415 (slow)
            rendezvous_handler_registry,
        )
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (  # noqa: PLC0415
            create_backend,
        )
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: PLC0415
            create_handler,
        )
    except ImportError as error:
        raise TorchVersionError(
            f"mm-dist run over several machines does not know the rendezvous of this torch: "
            f"{error}. Use torchrun, or a torch between 1.13 and 2.15."
        ) from error

    def create(params: Any) -> Any:
        backend, store = create_backend(params)
        return create_handler(store, _listening(backend, contact), params)

    rendezvous_handler_registry.register(BACKEND_NAME, create)


def _listening(backend: Any, contact: Contact) -> Any:
    """Return ``backend`` behind one that tells ``contact`` of each answer."""
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (  # noqa: PLC0415
        RendezvousBackend,
    )

    class _Listening(RendezvousBackend):
        @property
        def name(self) -> str:
            # torch compares it with what it was asked for.
            return BACKEND_NAME

        def get_state(self) -> Any:
            return self._heard(backend.get_state())

        def set_state(self, state: bytes, token: Any = None) -> Any:
            if is_closed(state) and _is_leaving_others():
                raise RendezvousConnectionError("This launcher leaves; the others may go on.")
            return self._heard(backend.set_state(state, token))

        def _heard(self, answer: Any) -> Any:
            contact.say_talked(b"" if answer is None else answer[0])
            return answer

    return _Listening()


def is_closed(state: bytes) -> bool:
    """Return whether an encoded state is that of a run which is over for all machines."""
    # torch itself reads it so, and more often.
    return bool(state) and bool(getattr(pickle.loads(state), "closed", False))  # noqa: S301


def _is_leaving_others() -> bool:
    """Return whether this launcher ends by an error of its own, and not by one of its ranks.

    torch then closes the rendezvous for good, although another launcher may take this one's place.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    error = sys.exc_info()[1]
    return error is not None and not isinstance(error, ChildFailedError)
