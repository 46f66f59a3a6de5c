"""The state of a sharded model and its optimizer: whole, or one part on each rank."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer

from mm_dist._errors import ConfigError
from mm_dist._wrappers._sharded_tensors import gather_state, scatter_state

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_KINDS = ("full", "sharded")


class ShardedState:
    """Reads and writes the state of a sharded model; arguments are those of the wrapper.

    Args:
        module: The sharded model, without a wrapper, so that names are those of the model.
        mesh: Its ranks.
    """

    def __init__(self, module: nn.Module, mesh: "DeviceMesh") -> None:
        self._module = module
        self._mesh = mesh

    def read_full(self, *, cpu_offload: bool, rank0_only: bool) -> dict[str, Any]:
        """Return the model's whole state."""
        state = self.read_sharded()
        return gather_state(state, self._mesh, cpu_offload=cpu_offload, rank0_only=rank0_only)

    def load_full(self, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load a whole state of the model, of which the first rank's counts."""
        optional = () if strict else None
        self.load_sharded(
            scatter_state(state, self.read_sharded(), self._mesh, optional=optional), strict=True
        )

    def read_sharded(self) -> dict[str, Any]:
        """Return this rank's part of the model's state."""
        return get_model_state_dict(self._module)

    def load_sharded(self, state: Mapping[str, Any], *, strict: bool) -> None:
        """Load this rank's part of the model's state."""
        set_model_state_dict(self._module, dict(state), options=StateDictOptions(strict=strict))

    def read_optimizer(self, optimizer: Optimizer, kind: str) -> dict[str, Any]:
        """Return an optimizer's state, by names of parameters."""
        _check_kind(kind)
        if optimizer.state:
            state = get_optimizer_state_dict(self._module, optimizer)
        else:
            state = self._read_initial(optimizer)
        if kind == "sharded":
            return state
        if not optimizer.state:
            state["state"] = {}
        return gather_state(state, self._mesh, cpu_offload=True, rank0_only=True)

    def load_optimizer(self, optimizer: Optimizer, state: Mapping[str, Any], kind: str) -> None:
        """Load an optimizer's state."""
        _check_kind(kind)
        if kind == "full":
            template = self._read_template(optimizer)
            scattered = scatter_state(state, template, self._mesh, optional=("state",))
            state = {"state": {}, **scattered}
        # A parameter that no gradient has reached has no state, here as there.
        options = StateDictOptions(strict=False)
        set_optimizer_state_dict(self._module, optimizer, dict(state), options=options)

    def _read_template(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return a state that has an entry for all that another one may have."""
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        if all(p in optimizer.state for p in trained if p.requires_grad):
            return get_optimizer_state_dict(self._module, optimizer)
        return self._read_initial(optimizer)

    def _read_initial(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state that the optimizer began with; its present one is untouched."""
        # torch finds it by a step with the learning rate 0, if there are no gradients.
        with _set_aside(optimizer):
            state: dict[str, Any] = get_optimizer_state_dict(self._module, optimizer)
        for values in state["state"].values():
            if "step" in values:
                values["step"] = values["step"] * 0
        return state


@contextmanager
def _set_aside(optimizer: Optimizer) -> Iterator[None]:
    """Take an optimizer's state and its gradients away, and give them back afterwards."""
    state = dict(optimizer.state)
    gradients = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        optimizer.state.clear()
        optimizer.state.update(state)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _check_kind(kind: str) -> None:
    if kind not in _KINDS:
        raise ConfigError(f"kind={kind!r} is not known; use {' or '.join(map(repr, _KINDS))}.")
