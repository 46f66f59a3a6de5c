"""Check that all ranks ask for the same group: if one did not, the others would wait for it."""

import hashlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from mm_dist._errors import LaunchError

# How long rank 0, whose store ends with it, lets the others read what differs.
_READ_GRACE_S, _PAUSE_S = 3.0, 0.02


class Agreement:
    """What every rank asks for, compared in the store while all of them meet there.

    Ranks that agree ask one question, however many they are.

    Args:
        store: Where the ranks meet.
        prefix: What the keys of this meeting begin with.
        rank: Of this process.
        world_size: Number of ranks.
        settings: What has to be the same on all ranks, by the name of the argument or variable.
    """

    def __init__(
        self, store: Any, prefix: str, rank: int, world_size: int, settings: Mapping[str, str]
    ) -> None:
        self._store = store
        self._prefix = f"{prefix}/settings"
        self._rank = rank
        self._world_size = world_size
        self._settings = dict(settings)
        digest = hashlib.sha256(json.dumps(self._settings).encode()).hexdigest()[:16]
        self._equals_key = f"{self._prefix}/equals/{digest}"
        self._num_told_key = f"{self._prefix}/num_told"

    def post(self, *, is_counted: bool) -> None:
        """Show what this rank asks for; to be called before the rank counts as present.

        Args:
            is_counted: Whether no former process of this rank has done so.
        """
        note = json.dumps([socket.gethostname(), self._settings])
        self._store.set(f"{self._prefix}/{self._rank}", note)
        self._store.add(self._equals_key, int(is_counted))

    def check(self) -> None:
        """Compare, once all ranks are present.

        Raises:
            LaunchError: If some ask for something else than rank 0, on all ranks alike.
        """
        if self._store.add(self._equals_key, 0) >= self._world_size:
            return
        key = f"{self._prefix}/difference"
        if self._rank != 0:
            difference = bytes(self._store.get(key)).decode()
            self._store.add(self._num_told_key, 1)
            raise LaunchError(difference)
        difference = self._describe_difference()
        self._store.set(key, difference)
        self._wait_for_readers()
        raise LaunchError(difference)

    def _describe_difference(self) -> str:
        """Name the first rank that differs from this one, rank 0."""
        for rank in range(1, self._world_size):
            host, settings = json.loads(bytes(self._store.get(f"{self._prefix}/{rank}")))
            for name in sorted({*settings, *self._settings}):
                own, other = self._settings.get(name), settings.get(name)
                if own != other:
                    return (
                        f"The ranks ask for different groups: {name} is {own} on rank 0 (host "
                        f"{socket.gethostname()}), and {other} on rank {rank} (host {host}). Give "
                        "all ranks the same arguments and environment variables."
                    )
        return "The ranks ask for different groups, see rank 0's arguments and those of others."

    def _wait_for_readers(self) -> None:
        end = time.monotonic() + _READ_GRACE_S
        while self._store.add(self._num_told_key, 0) < self._world_size - 1:
            if time.monotonic() >= end:
                return
            time.sleep(_PAUSE_S)
