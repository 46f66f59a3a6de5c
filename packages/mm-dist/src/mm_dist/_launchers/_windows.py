"""What Windows needs before processes meet."""

from collections.abc import Mapping


def libuv_variables(platform: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before torch opens its store on this platform.

    Newer versions of torch ask for libuv by default; their builds for Windows lack it, and fail.

    Args:
        platform: ``sys.platform``.
        env: The environment; what the user chose there stays.

    Example:
        >>> libuv_variables("win32", {})
        {'USE_LIBUV': '0'}
    """
    return {"USE_LIBUV": "0"} if platform == "win32" and not env.get("USE_LIBUV") else {}
