"""Checks of the keys that ask for a comparison with eager code: its time and its numbers."""

from collections.abc import Mapping
from typing import Any

from mm_compile._errors import ConfigError

# Eager steps that are timed where measure=True.
_DEFAULT_MEASURE = 8
# Methods that may run more than once in a step: they step no optimizer.
REPEATABLE = ("forward", "loss", "predict")
TRAINED = ("forward", "loss", "train_step")


def number_of_steps(measure: bool | int) -> int:  # noqa: FBT001 - a config value
    """Return how many eager steps ``measure`` asks for.

    Raises:
        ConfigError: If it is negative.
    """
    if measure < 0:
        raise ConfigError(f"compile.measure is {measure!r}; it takes 0 or more steps.")
    return _DEFAULT_MEASURE if measure is True else int(measure)


def check_receipt(given: Mapping[str, Any], targets: tuple[str, ...]) -> None:
    """Check what ``disable="auto"`` and ``verify`` can be combined with.

    Raises:
        ConfigError: If they ask for what cannot be weighed or run twice.
    """
    disable = given.get("disable", False)
    if isinstance(disable, str) and disable != "auto":
        raise ConfigError(f"compile.disable is {disable!r}; it takes True, False or 'auto'.")
    if disable == "auto" and (len(targets) != 1 or targets[0] not in TRAINED):
        raise ConfigError(
            f"compile has disable='auto' and target={given['target']!r}; 'auto' weighs one method "
            f"that trains: {', '.join(map(repr, TRAINED))}. Name one, or drop 'auto'."
        )
    if disable == "auto" and given.get("optimizer"):
        raise ConfigError(
            "compile has disable='auto' and optimizer=True; 'auto' weighs the model alone. Drop "
            "one of the two."
        )
    if disable == "auto" and given.get("measure"):
        raise ConfigError(
            f"compile has disable='auto' and measure={given['measure']!r}; 'auto' times "
            "eager steps itself, as many as it needs. Drop measure."
        )
    if given.get("measure") and not set(targets) & set(TRAINED):
        raise ConfigError(
            f"compile has measure={given['measure']!r} and target={given['target']!r}; what is "
            "timed are training steps, and none of these runs in one. Use target='forward', or "
            "drop measure."
        )
    # An empty dict is a verify with its defaults.
    if given.get("verify", False) not in (False, 0) and not set(targets) <= set(REPEATABLE):
        raise ConfigError(
            f"compile has verify={given['verify']!r} and target={given['target']!r}; what is "
            f"compared runs more than once, which only {', '.join(map(repr, REPEATABLE))} may. Use "
            "target='forward', or drop verify."
        )
