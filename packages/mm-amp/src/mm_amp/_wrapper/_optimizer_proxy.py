"""An optimizer's groups, state and hooks, for a wrapper that is an optimizer itself."""

from functools import partialmethod
from typing import Any

import torch
from typing_extensions import override


class OptimizerProxy(torch.optim.Optimizer):
    """Has the parameter groups, state and hooks of ``optimizer``, as torch's schedulers need."""

    optimizer: torch.optim.Optimizer

    # Properties, as load_state_dict() gives the optimizer new groups and a new state.
    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The optimizer's parameter groups, live: a scheduler may write ``lr`` to them."""
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The optimizer's default settings."""
        return self.optimizer.defaults

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """The optimizer's state, live."""
        return self.optimizer.state

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group to the optimizer."""
        self.optimizer.add_param_group(param_group)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the optimizer."""
        return getattr(self.optimizer, method)(*args, **kwargs)

    register_step_pre_hook = partialmethod(_call, "register_step_pre_hook")
    register_step_post_hook = partialmethod(_call, "register_step_post_hook")
    register_state_dict_pre_hook = partialmethod(_call, "register_state_dict_pre_hook")
    register_state_dict_post_hook = partialmethod(_call, "register_state_dict_post_hook")
    register_load_state_dict_pre_hook = partialmethod(_call, "register_load_state_dict_pre_hook")
    register_load_state_dict_post_hook = partialmethod(_call, "register_load_state_dict_post_hook")

    @override
    def __getstate__(self) -> dict[str, Any]:
        # A scheduler replaces step() by a function that refers to this very object.
        return {name: value for name, value in vars(self).items() if name != "step"}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def get_lr(self) -> dict[str, list[float]]:
        """Return ``{'lr': [...]}``, one learning rate per parameter group."""
        return {"lr": [group["lr"] for group in self.param_groups]}

    def get_momentum(self) -> dict[str, list[float]]:
        """Return ``{'momentum': [...]}``: each group's momentum, else its first beta, else 0."""
        groups = self.param_groups
        return {"momentum": [g.get("momentum", g.get("betas", (0.0,))[0]) for g in groups]}
