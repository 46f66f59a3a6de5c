from datetime import timedelta

import pytest

from mm_dist import ConfigError
from mm_dist._timeout import read_timeout


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
    "timeout", [0, -1, float("nan"), float("inf"), timedelta(0), True, "60"], ids=str
)
def test_read_timeout_refuses_what_is_no_time(timeout):
    with pytest.raises(ConfigError, match="timeout="):
        read_timeout(timeout)
