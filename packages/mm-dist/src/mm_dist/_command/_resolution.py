"""Turn a machine's name into an address, within a time that a person waits for."""

import socket
import threading
import time

from mm_dist._errors import LaunchError

_LIMIT_S, _PAUSE_S = 10.0, 0.5


def resolve_host(name: str, limit_s: float = _LIMIT_S) -> str:
    """Return an address of a machine; one that is given already comes back unchanged.

    A name that nobody knows yet is asked for again until the time is over: in Kubernetes the
    first machine's name appears a little after its container.

    Raises:
        LaunchError: If the name is not known by then.

    Example:
        >>> resolve_host("127.0.0.1")
        '127.0.0.1'
    """
    found: list[str] = []
    failures: list[str] = []
    is_over = threading.Event()
    # In a thread: what asks a name server cannot be told when to stop.
    arguments = (name, found, failures, is_over)
    thread = threading.Thread(target=_ask, args=arguments, daemon=True)
    thread.start()
    thread.join(limit_s)
    is_over.set()
    if found:
        return found[0]
    reason = failures[-1] if failures else "no name server answered"
    raise LaunchError(
        f"The first machine {name!r} cannot be found within {limit_s:g} s: {reason}. Check the "
        "name, or give the machine's address."
    )


def _ask(name: str, found: list[str], failures: list[str], is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            failures.append(str(error))
            time.sleep(_PAUSE_S)
            continue
        found.append(str(answers[0][4][0]))
        return
