"""Where a configuration says that its keys were written."""

from mm_runner import ConfigError


def expect_places(cfg, places):
    """Assert that messages, which begin with the path of a key, are put behind these places."""
    for message, place in places:
        assert str(cfg.located(ConfigError(message))) == f"{place}: {message}"
