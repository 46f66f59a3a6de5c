"""The network interface that leads to the other machines, where gloo would not find it.

gloo publishes the address that this machine's name resolves to here. Where that is a
loopback address, as Debian's installer writes it, other machines would look for it on their own.
"""

import logging
import socket
import struct
import sys
from collections.abc import Mapping

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._rendezvous._address import own_address_towards

_logger = logging.getLogger(__name__)
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR
# Reserved for documents: the way there is the default route, if there is one.
_ELSEWHERE = "192.0.2.1"
_VARIABLE = "GLOO_SOCKET_IFNAME"


def interface_variables(environment: LaunchEnvironment, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable to set so that gloo uses the right interface; empty if it will.

    On the first machine, whose name may mean a loopback address, that is the interface of the
    default route, else the only one that there is.

    Args:
        environment: This process's place.
        env: The environment; what the user chose there stays.
    """
    if env.get(_VARIABLE) or environment.num_nodes == 1:
        return {}
    meant = name_address()
    if meant is not None and not is_loopback(meant):
        return {}
    outside = {n: text for n, text in _interface_addresses().items() if not is_loopback(text)}
    own = [own_address_towards(to) for to in (str(environment.master_addr), _ELSEWHERE)]
    found = [name for address in own for name, text in outside.items() if text == address]
    found += outside if len(outside) == 1 else []
    if not found:
        return {}
    _logger.info("setting %s=%s, as this machine's name does not lead here", _VARIABLE, found[0])
    return {_VARIABLE: found[0]}


def _interface_addresses() -> dict[str, str]:
    """Map each network interface to its IPv4 address; empty on systems other than Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    import fcntl  # noqa: PLC0415 (not on every system)

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def name_address() -> str | None:
    """Return what this machine's own name means here; gloo binds to that by default."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def is_loopback(address: str | None) -> bool:
    """Return whether an address means the machine itself, on every machine."""
    return address is not None and (address.startswith("127.") or address == "::1")
