"""Options of the tests that break things on purpose, two hosts, and the table at the end."""

import debian
import pytest
from fault_table import ROWS, as_markdown
from two_hosts import TwoHosts


def pytest_addoption(parser):
    parser.addoption(
        "--kills", type=int, default=10, help="how often to kill a training run (default: 10)"
    )
    parser.addoption(
        "--long", action="store_true", help="100 faults in a row over two hosts, instead of 20"
    )
    parser.addoption(
        "--seed", type=int, default=0, help="which faults befall which host, and in which order"
    )
    parser.addoption(
        "--slack",
        type=float,
        default=5.0,
        metavar="SECONDS",
        help="how long after its timeout a rank may take to end (default: 5); more on a machine "
        "that has much else to do",
    )
    parser.addoption(
        "--report", metavar="FILE", help="write the table of faults there, as Markdown and JSON"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "cut: one of the few that are run with every change")


@pytest.fixture
def hosts():
    """Two hosts with a link between them."""
    reason = debian.why_missing(("ip",), ("iproute2",))
    if reason is not None:
        pytest.skip(reason)
    try:
        both = TwoHosts()
    except OSError as error:
        pytest.skip(f"two hosts need network namespaces, which only root may make: {error}")
    yield both.hosts
    both.close()


def pytest_terminal_summary(terminalreporter, config):
    rows = config.stash.get(ROWS, [])
    if rows:
        terminalreporter.section("faults in a row")
        terminalreporter.write_line(as_markdown(rows))
