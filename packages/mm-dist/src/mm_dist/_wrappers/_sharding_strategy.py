"""What is sharded, and when the gathered parameters are freed."""

from dataclasses import dataclass
from typing import Any

from mm_dist._errors import ConfigError
from mm_dist._suggestion import suggest_name


@dataclass(frozen=True)
class Strategy:
    """One way to spread a model over ranks.

    Attributes:
        name: Our name of it.
        reshard_after_forward: Whether the gathered parameters are freed between forward and
            backward. A number frees them down to shards over that many ranks.
        is_hybrid: Whether the ranks of one machine share a copy, instead of all ranks.
        is_replicated: Whether every rank keeps a whole copy.
    """

    name: str
    reshard_after_forward: bool | int
    is_hybrid: bool = False
    is_replicated: bool = False


FULL = Strategy("full", reshard_after_forward=True)
HYBRID = Strategy("hybrid", reshard_after_forward=True, is_hybrid=True)
_STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        FULL,
        Strategy("grad-op", reshard_after_forward=False),
        HYBRID,
        Strategy("hybrid-grad-op", reshard_after_forward=False, is_hybrid=True),
        Strategy("no-shard", reshard_after_forward=False, is_replicated=True),
    )
}
# The members of torch's first ShardingStrategy, in lower case and with dashes.
_FORMER_NAMES = {
    "full-shard": "full",
    "shard-grad-op": "grad-op",
    "hybrid-shard": "hybrid",
    "hybrid-shard-zero2": "hybrid-grad-op",
    "no-shard": "no-shard",
}


def read_strategy(given: Any, reshard_after_forward: Any) -> Strategy | None:
    """Return the strategy asked for; ``None`` if nothing was.

    Args:
        given: A name of ours, a name or member of torch's first ``ShardingStrategy``, or ``None``.
        reshard_after_forward: ``None`` for what belongs to the strategy, else a boolean or the
            number of ranks.

    Raises:
        ConfigError: If the strategy is not known, or the two contradict each other.
    """
    is_flag = reshard_after_forward is None or isinstance(reshard_after_forward, bool)
    is_count = isinstance(reshard_after_forward, int) and reshard_after_forward > 1
    if not is_flag and not is_count:
        raise ConfigError(
            f"reshard_after_forward={reshard_after_forward!r} cannot be used; give True, False, "
            "the number of ranks to keep sharding over (2 or more), or None."
        )
    strategy = None if given is None else _find_strategy(given)
    if strategy is None or reshard_after_forward in (None, strategy.reshard_after_forward):
        return strategy
    if isinstance(reshard_after_forward, bool) or not strategy.reshard_after_forward:
        raise ConfigError(
            f"sharding_strategy={given!r} and reshard_after_forward={reshard_after_forward!r} "
            f"contradict each other: {strategy.name!r} means "
            f"{strategy.reshard_after_forward!r}. Leave one of them out."
        )
    return strategy


def _find_strategy(given: Any) -> Strategy:
    # A member of the enum counts by its name, so that torch.distributed.fsdp is not needed here.
    text = given if isinstance(given, str) else getattr(given, "name", None)
    name = str(text).lower().replace("_", "-").rpartition(".")[2].strip("-")
    name = _FORMER_NAMES.get(name, name)
    if text is None or name not in _STRATEGIES:
        raise ConfigError(
            f"sharding_strategy={given!r} is not known; there are: {', '.join(_STRATEGIES)}, and "
            "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, _HYBRID_SHARD_ZERO2, NO_SHARD."
            f"{suggest_name(name, _STRATEGIES)}"
        )
    return _STRATEGIES[name]
