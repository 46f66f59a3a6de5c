"""Named optimizer wrappers, for models that several optimizers train in turn."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from functools import partialmethod
from typing import Any, NoReturn

from torch import nn

from mm_amp._checks import did_you_mean
from mm_amp._errors import ConfigError, ConfigTypeError, UnsupportedError
from mm_amp._wrapper._optim_wrapper import OptimWrapper
from mm_amp._wrapper._result import StepResult


class OptimWrapperDict:
    """Optimizer wrappers by name; the model's ``train_step`` decides which of them steps when.

    Each has its own loss scaler: an overflow in one skips no step of another. State, learning rates
    and ``zero_grad`` are those of all; ``update_params`` and ``optim_context`` are called on one,
    as in ``wrappers['generator'].update_params(loss)``.

    Args:
        **optim_wrappers: The wrappers by name, at least one.

    Raises:
        ConfigError: If one is no ``OptimWrapper``, or there is none.

    Example:
        >>> generator, critic = torch.nn.Linear(2, 4), torch.nn.Linear(4, 1)
        >>> wrappers = OptimWrapperDict(
        ...     generator=OptimWrapper(torch.optim.SGD(generator.parameters(), lr=0.1)),
        ...     critic=OptimWrapper(torch.optim.SGD(critic.parameters(), lr=0.2)),
        ... )
        >>> wrappers.get_lr()
        {'generator.lr': [0.1], 'critic.lr': [0.2]}
        >>> wrappers["critic"].update_params(critic(torch.ones(2, 4)).mean()).stepped
        True
    """

    def __init__(self, **optim_wrappers: OptimWrapper) -> None:
        if not optim_wrappers:
            raise ConfigError("no optimizer wrapper was given; name at least one: name=wrapper.")
        for name, wrapper in optim_wrappers.items():
            if not isinstance(wrapper, OptimWrapper):
                raise ConfigTypeError(
                    f"{name} is a {type(wrapper).__name__}; it must be an OptimWrapper or "
                    "AmpOptimWrapper."
                )
        self.optim_wrappers = optim_wrappers

    def _refuse(self, call: str, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raise ``UnsupportedError``: call it on one of the wrappers."""
        names = list(self.optim_wrappers)
        raise UnsupportedError(
            f"{call} was called on {len(names)} optimizer wrappers at once; call it on one of them "
            f"in the model's train_step: optim_wrapper[{names[0]!r}].{call}. There is "
            f"{', '.join(names)}."
        )

    # A loss belongs to one of the wrappers, which differ in precision and accumulation.
    update_params = partialmethod(_refuse, "update_params(loss)")
    backward = partialmethod(_refuse, "backward(loss)")
    step = partialmethod(_refuse, "step()")
    optim_context = partialmethod(_refuse, "optim_context(model)")

    def zero_grad(self, **kwargs: Any) -> None:
        """Zero the gradients of all; arguments are those of ``optimizer.zero_grad``."""
        for wrapper in self.values():
            wrapper.zero_grad(**kwargs)

    def initialize_count_status(self, model: nn.Module, init_counts: int, max_counts: int) -> None:
        """Do nothing: only ``train_step`` knows how often each wrapper runs.

        Call it on a wrapper that runs in every iteration, so that its short last window is weighted
        right.
        """

    @property
    def step_skipped(self) -> bool:
        """Whether the last call of *any* wrapper found a skipped step.

        A wrapper that was not called since keeps its answer. For schedules per wrapper, read
        ``wrappers[name].step_skipped`` after each of its steps.
        """
        answers = [wrapper.step_skipped for wrapper in self.values()]  # all: reading counts
        return any(answers)

    @property
    def num_skipped(self) -> int:
        """Number of skipped steps of all wrappers that are known so far."""
        return sum(wrapper.num_skipped for wrapper in self.values())

    @property
    def last_result(self) -> dict[str, StepResult | None]:
        """Result of the last call of each wrapper, by its name; ``None`` before its first."""
        return {name: wrapper.last_result for name, wrapper in self.items()}

    @property
    def param_groups(self) -> dict[str, list[dict[str, Any]]]:
        """The live parameter groups of each wrapper, by its name."""
        return {name: wrapper.param_groups for name, wrapper in self.items()}

    def get_lr(self) -> dict[str, list[float]]:
        """Return ``{'<name>.lr': [...]}``, one learning rate per parameter group."""
        return {f"{name}.lr": wrapper.get_lr()["lr"] for name, wrapper in self.items()}

    def get_momentum(self) -> dict[str, list[float]]:
        """Return ``{'<name>.momentum': [...]}``, one per parameter group."""
        items = self.items()
        return {f"{name}.momentum": wrapper.get_momentum()["momentum"] for name, wrapper in items}

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return the state of each wrapper by its name; the tensors are the live ones."""
        return {name: wrapper.state_dict() for name, wrapper in self.items()}

    def load_state_dict(self, state_dict: Mapping[str, Mapping[str, Any]]) -> None:
        """Load a ``state_dict()``, of this package or of MMEngine; it is not changed.

        Raises:
            ConfigError: If its names are not those of the wrappers; nothing is loaded then.
        """
        if set(state_dict) != set(self.optim_wrappers):
            raise ConfigError(
                f"the state is of {', '.join(map(str, state_dict)) or 'no wrapper'}, and the "
                f"wrappers are {', '.join(self.optim_wrappers)}; give them the same names."
            )
        for name, wrapper in self.items():
            wrapper.load_state_dict(state_dict[name])

    def items(self) -> ItemsView[str, OptimWrapper]:
        """Return the pairs of name and wrapper."""
        return self.optim_wrappers.items()

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self.optim_wrappers.keys()

    def values(self) -> ValuesView[OptimWrapper]:
        """Return the wrappers."""
        return self.optim_wrappers.values()

    def __getitem__(self, name: str) -> OptimWrapper:
        if name not in self.optim_wrappers:
            hint = did_you_mean(str(name), self.optim_wrappers)
            raise KeyError(
                f"no optimizer wrapper is named {name!r}; there is "
                f"{', '.join(self.optim_wrappers)}{hint}"
            )
        return self.optim_wrappers[name]

    def __contains__(self, name: object) -> bool:
        return name in self.optim_wrappers

    def __iter__(self) -> Iterator[str]:
        return iter(self.optim_wrappers)

    def __len__(self) -> int:
        return len(self.optim_wrappers)

    def __repr__(self) -> str:
        lines = "".join(f"  {name}={wrapper!r},\n" for name, wrapper in self.items())
        return f"{type(self).__name__}(\n{lines})"
