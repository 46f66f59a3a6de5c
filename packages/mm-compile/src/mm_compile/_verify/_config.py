"""How compiled code is compared with eager code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mm_compile._errors import ConfigError
from mm_compile._suggestion import suggest

_KEYS = ("steps", "rtol", "atol")
_DEFAULT_STEPS = 1
# By the least precise type that takes part. Compilers fuse, so they round less often than eager
# code and sum in another order: twenty roundings of a half type, and in float32 what is left of
# a long sum, are no error.
_RTOL = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 0.16}
_ATOL = {torch.float64: 1e-9, torch.float32: 1e-6, torch.float16: 1e-4, torch.bfloat16: 1e-4}


@dataclass(frozen=True)
class VerifyConfig:
    """A checked ``verify``.

    Attributes:
        steps: How many training calls of each region are compared.
        rtol: Allowed deviation, relative to the largest element; None for that of the type.
        atol: Allowed deviation of any element; None for that of the type.
    """

    steps: int
    rtol: float | None = None
    atol: float | None = None

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """Return ``(rtol, atol)`` where ``dtype`` is the least precise type that takes part."""
        rtol = _RTOL.get(dtype, _RTOL[torch.bfloat16]) if self.rtol is None else self.rtol
        atol = _ATOL.get(dtype, _ATOL[torch.bfloat16]) if self.atol is None else self.atol
        return rtol, atol


def parse_verify(verify: bool | int | Mapping[str, Any]) -> VerifyConfig | None:  # noqa: FBT001 - a config value
    """Read ``verify``: a number of training calls, True for one, or a dict.

    Returns:
        The checked value; None for False and 0.

    Raises:
        ConfigError: If a key is unknown, or a value is no number or negative.
    """
    given = dict(verify) if isinstance(verify, Mapping) else {"steps": verify}
    for key, value in given.items():
        if key not in _KEYS:
            raise ConfigError(f"compile.verify has no key {key!r}. {suggest(key, _KEYS)}")
        kinds = (int,) if key == "steps" else (int, float)
        # A tolerance that is not a number would refuse everything.
        if value is not None and not (isinstance(value, kinds) and value >= 0):
            wanted = "a number of training calls" if key == "steps" else "a tolerance"
            raise ConfigError(f"compile.verify.{key} is {value!r}; it takes {wanted}, 0 or more.")
    steps = given.pop("steps", None)
    steps = _DEFAULT_STEPS if steps is None else steps
    return VerifyConfig(steps=int(steps), **given) if steps else None
