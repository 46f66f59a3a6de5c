"""The learning rates of a run, by the names that log lines give them."""

from __future__ import annotations

import math
from typing import Any

from mm_runner.optim import named_wrappers

__all__ = ["learning_rates"]


def learning_rates(optim_wrapper: Any) -> dict[str, float]:
    """Return the present learning rates; this waits for the device where they are tensors.

    Args:
        optim_wrapper: An optimizer wrapper, or an ``OptimWrapperDict``.

    Returns:
        ``lr``, that of the first group of parameters; where groups began with different ones also
        ``base_lr``, that of the groups which have the optimizer's own. Of several optimizers each
        is ``<name>.lr`` and ``<name>.base_lr``.

    Example:
        >>> learning_rates(runner.optim_wrapper)  # doctest: +SKIP
        {'lr': 0.001, 'base_lr': 0.01}
    """
    rates = {name: float(groups[0]) for name, groups in optim_wrapper.get_lr().items()}
    named: dict[str, float] = {}
    for name, rate in rates.items():
        named[name] = rate
        prefix, is_of_one, kind = name.rpartition(".")
        base_name = f"{prefix}{is_of_one}base_lr"
        if kind == "lr" and base_name not in rates:
            base = _base_rate(named_wrappers(optim_wrapper).get(prefix))
            named.update({} if base is None else {base_name: base})
    return named


def _base_rate(wrapper: Any) -> float | None:
    """Return the rate of the groups that nothing but the schedule changes, if others differ."""
    optimizer = getattr(wrapper, "optimizer", None)
    groups = getattr(optimizer, "param_groups", ())
    own = getattr(optimizer, "defaults", {}).get("lr")
    # What schedules began with does not change: a line does not lose a name where rates meet.
    began = [float(group.get("initial_lr", group["lr"])) for group in groups if "lr" in group]
    if own is None or len(began) != len(groups) or len(set(began)) < 2:
        return None
    of_base = (g for g, rate in zip(groups, began, strict=True) if math.isclose(rate, float(own)))
    found = next(of_base, None)
    return None if found is None else float(found["lr"])
