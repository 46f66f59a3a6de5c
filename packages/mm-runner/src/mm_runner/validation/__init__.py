"""Check a configuration before anything is built from it.

The components that it names are imported, and their signatures and annotations compared with what
is given; none of them is called, but for torch's optimizers, our optimizer wrappers and schedules,
which are tried on a parameter of four numbers, and the log processor. Every message begins with the
path of the key.
"""

from ._run import (
    check_auto_scale,
    check_environment,
    check_randomness,
    check_train_loop,
    validate_run,
)

__all__ = [
    "check_auto_scale",
    "check_environment",
    "check_randomness",
    "check_train_loop",
    "validate_run",
]
