"""The network interface that leads to the other machines, where gloo would not find it.

gloo publishes the address that this machine's name resolves to here. Where that is a
loopback address, as Debian's installer writes it, other machines would look for it on their own.
"""

import logging
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._rendezvous._address import own_address_towards

_logger = logging.getLogger(__name__)
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR
# Reserved for documents: the way there is the default route, if there is one.
_ELSEWHERE = "192.0.2.1"
_VARIABLE = "GLOO_SOCKET_IFNAME"


def interface_variables(environment: LaunchEnvironment, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable to set so that gloo uses the right interface; empty if it will."""
    if env.get(_VARIABLE) or environment.num_nodes == 1 or not sys.platform.startswith("linux"):
        return {}
    with suppress(OSError):
        if not socket.gethostbyname(socket.gethostname()).startswith("127."):
            return {}
    outside = interface_addresses()
    own = [own_address_towards(to) for to in (str(environment.master_addr), _ELSEWHERE)]
    found = [name for address in own for name, text in outside.items() if text == address]
    found += outside if len(outside) == 1 else []
    if not found:
        return {}
    _logger.info("setting %s=%s, as this machine's name does not lead here", _VARIABLE, found[0])
    return {_VARIABLE: found[0]}


def interface_addresses() -> dict[str, str]:
    """Map each network interface to its IPv4 address, loopback addresses left out."""
    import fcntl  # noqa: PLC0415 (not on every system)

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                request = struct.pack("256s", name.encode()[:15])
                answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return {name: text for name, text in found.items() if not text.startswith("127.")}
