"""At which addresses other machines may reach this one."""

import os

from mm_dist._process_group._address import own_address_towards
from mm_dist._process_group._interface import interface_addresses, is_loopback, name_address

_INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")


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
