"""Options of the tests that break things on purpose."""


def pytest_addoption(parser):
    parser.addoption(
        "--kills", type=int, default=10, help="how often to kill a training run (default: 10)"
    )
