"""At which addresses other machines may reach this one."""

import os
import socket
import struct
import sys

from mm_dist._command._run_nodes import own_address_towards

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")
_GET_ADDRESS = 0x8915  # Linux's SIOCGIFADDR


def own_addresses(towards: str) -> list[str]:
    """Return this machine's addresses, the likeliest first.

    That is the one of the interface that a backend was told to use, the one that is used to reach
    the first machine, that of the machine's name, and those of all interfaces. Loopback addresses
    are left out unless the first machine is reached through one: then all ranks are here.

    Args:
        towards: Address of the first machine.
    """
    by_interface = interface_addresses()
    told = [by_interface.get(os.environ.get(name, "")) for name in _INTERFACE_VARIABLES]
    found = [*told, own_address_towards(towards), name_address(), *by_interface.values()]
    addresses = list(dict.fromkeys(address for address in found if address))
    if is_loopback(own_address_towards(towards)):
        return addresses
    return [address for address in addresses if not is_loopback(address)]


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
