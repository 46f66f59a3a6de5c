"""What gloo is told where a machine's own name means its loopback address."""

import pytest

from mm_dist._launchers._environment import LaunchEnvironment
from mm_dist._rendezvous import _interface
from mm_dist._rendezvous._interface import interface_variables

INTERFACES = {"eth0": "10.0.0.5", "ib0": "10.1.0.5"}
ROUTES = {"10.1.0.9": "10.1.0.5", "127.0.1.1": "127.0.0.1", "10.0.0.5": "10.0.0.5"}


@pytest.fixture
def machine(monkeypatch):
    """``machine(name_address, default=...)``: a machine with two networks."""

    def stand_in(name_address, default=None, interfaces=INTERFACES):
        routes = {**ROUTES, "192.0.2.1": default}
        monkeypatch.setattr(_interface.socket, "gethostbyname", lambda _: name_address)
        monkeypatch.setattr(_interface, "own_address_towards", routes.get)
        monkeypatch.setattr(_interface, "interface_addresses", lambda: interfaces)

    return stand_in


def place(master_addr="10.1.0.9", num_nodes=2):
    return LaunchEnvironment("pytorch", 1, 0, 2, 1, num_nodes, master_addr, 29500, {})


def test_interface_towards_the_first_machine_is_told(machine):
    machine("127.0.1.1")
    assert interface_variables(place(), {}) == {"GLOO_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize(
    ("default", "interfaces", "expected"),
    [
        ("10.0.0.5", INTERFACES, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (None, {"eth0": "10.0.0.5"}, {"GLOO_SOCKET_IFNAME": "eth0"}),
        (None, INTERFACES, {}),
        (None, {}, {}),
    ],
    ids=["default-route", "only-one", "cannot-tell", "no-interfaces"],
)
def test_first_machine_that_sees_itself_by_loopback(machine, default, interfaces, expected):
    machine("127.0.1.1", default, interfaces)
    assert interface_variables(place("127.0.1.1"), {}) == expected


def test_it_is_left_alone_where_gloo_finds_the_way(machine):
    machine("10.0.0.5")
    assert interface_variables(place(), {}) == {}
    machine("127.0.1.1")
    assert interface_variables(place(num_nodes=1), {}) == {}
    assert interface_variables(place(), {"GLOO_SOCKET_IFNAME": "eth0"}) == {}
