from datetime import timedelta

import pytest

from mm_dist import ArgumentTypeError, ConfigError
from mm_dist._process_group._arguments import read_timeout


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, None),
        (90, timedelta(seconds=90)),
        (0.5, timedelta(seconds=0.5)),
        (timedelta(minutes=2), timedelta(minutes=2)),
    ],
    ids=["default", "int", "float", "timedelta"],
)
def test_read_timeout_takes_seconds_and_timedelta(timeout, expected):
    assert read_timeout(timeout) == expected


@pytest.mark.parametrize(
    ("timeout", "error"),
    [(each, ConfigError) for each in (0, -1, float("nan"), float("inf"), timedelta(0))]
    + [(each, ArgumentTypeError) for each in (True, "60")],
    ids=str,
)
def test_read_timeout_refuses_what_is_no_time(timeout, error):
    with pytest.raises(error, match="timeout="):
        read_timeout(timeout)
