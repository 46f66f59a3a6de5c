"""The network interface that leads to the other machines, where gloo would not find it.

gloo tells the others the address that this machine's name means to itself. Where that is a
loopback address, as Debian's installer writes it, other machines would look for it on their own.
"""

import logging
import socket
import struct
import sys
from collections.abc import Mapping

from mm_dist._launchers import LaunchEnvironment
from mm_dist._process_group._address import own_address_towards

_logger = logging.getLogger(__name__)
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR
# Reserved for documents: the way there is the default route, if there is one.
_ELSEWHERE = "192.0.2.1"
_VARIABLE = "GLOO_SOCKET_IFNAME"


def interface_variables(environment: LaunchEnvironment, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variable to set so that gloo uses the right interface; empty if it will.

    Args:
        environment: This process's place.
        env: The environment; what the user chose there stays.
    """
    interface = gloo_interface(environment, env)
    if interface is None or interface == env.get(_VARIABLE):
        return {}
    _logger.info("setting %s=%s, as this machine's name does not lead here", _VARIABLE, interface)
    return {_VARIABLE: interface}


def gloo_interface(environment: LaunchEnvironment, env: Mapping[str, str]) -> str | None:
    """Return the interface that gloo is told to use; ``None`` if it takes that of the name.

    Args:
        environment: This process's place.
        env: The environment, where the user may have chosen one.
    """
    if env.get(_VARIABLE):
        return env[_VARIABLE]
    if environment.num_nodes == 1:
        return None
    meant = name_address()
    if meant is not None and not is_loopback(meant):
        return None
    return choose_interface(str(environment.master_addr), interface_addresses())


def choose_interface(towards: str, by_interface: Mapping[str, str]) -> str | None:
    """Return the interface that leads to the first machine; ``None`` if none can be told.

    On the first machine itself, whose name may mean a loopback address, it is that of the default
    route, else the only one that there is.

    Args:
        towards: Name or address of the first machine.
        by_interface: The address of each interface.
    """
    outside = {name: text for name, text in by_interface.items() if not is_loopback(text)}
    for target in (towards, _ELSEWHERE):
        own = own_address_towards(target)
        found = [name for name, text in outside.items() if text == own]
        if found:
            return found[0]
    return next(iter(outside)) if len(outside) == 1 else None


def interface_addresses() -> dict[str, str]:
    """Map each network interface to its IPv4 address; empty where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return {}
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = _ask_address(probe, name)
            if address is not None:
                found[name] = address
    return found


def _ask_address(probe: socket.socket, name: str) -> str | None:
    import fcntl  # noqa: PLC0415 (not on every system)

    request = struct.pack("256s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def name_address() -> str | None:
    """Return what this machine's own name means here; gloo binds to that by default."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return None


def is_loopback(address: str | None) -> bool:
    """Return whether an address means the machine itself, on every machine."""
    return address is not None and (address.startswith("127.") or address == "::1")
