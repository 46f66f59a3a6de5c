import pytest

from mm_dist._launchers import libuv_variables


@pytest.mark.parametrize(
    ("platform", "env", "variables"),
    [
        ("win32", {}, {"USE_LIBUV": "0"}),
        ("win32", {"USE_LIBUV": "1"}, {}),
        ("win32", {"USE_LIBUV": "0"}, {}),
        ("linux", {}, {}),
        ("darwin", {}, {}),
    ],
)
def test_libuv_is_off_on_windows_unless_the_user_chose(platform, env, variables):
    assert libuv_variables(platform, env) == variables
