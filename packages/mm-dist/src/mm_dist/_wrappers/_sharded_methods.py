"""The methods by which a sharded wrapper gives its state to checkpoints, and takes it back."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from mm_dist._wrappers._sharded_state import ShardedState


class ShardedStateMethods:
    """For a wrapper of a sharded model.

    Attributes:
        module: The sharded model.
        device_mesh: Its ranks.
    """

    module: nn.Module
    device_mesh: "DeviceMesh"

    def full_state_dict(
        self, *, cpu_offload: bool = True, rank0_only: bool = True
    ) -> dict[str, Any]:
        """Return the model's whole state, with the names that the bare model has.

        Every rank must call this, or it hangs. ``state_dict()`` needs no other rank, and returns
        what this rank holds, as ``DTensor`` objects.

        Args:
            cpu_offload: Whether the tensors are on the CPU.
            rank0_only: Whether ranks other than the first get an empty dict.
        """
        return self._state().read_full(cpu_offload=cpu_offload, rank0_only=rank0_only)

    def load_full_state_dict(self, state_dict: Mapping[str, Any], *, strict: bool = True) -> None:
        """Load a whole state, of this wrapper or of the bare model.

        Every rank must call this, or it hangs.

        Args:
            state_dict: That of the first rank counts; others may pass an empty one.
            strict: Whether names must match.

        Raises:
            ConfigError: On all ranks, if names or shapes do not fit.
        """
        self._state().load_full(state_dict, strict=strict)

    def sharded_state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the model's state, with the names that the bare model has.

        ``torch.distributed.checkpoint.save`` writes it from all ranks, and ``load`` fills it on
        any number of ranks.
        """
        return self._state().read_sharded()

    def load_sharded_state_dict(
        self, state_dict: Mapping[str, Any], *, strict: bool = True
    ) -> None:
        """Load what ``sharded_state_dict`` returned and ``torch.distributed.checkpoint`` filled.

        Args:
            state_dict: This rank's part.
            strict: Whether names must match.
        """
        self._state().load_sharded(state_dict, strict=strict)

    def optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, *, kind: Literal["full", "sharded"] = "full"
    ) -> dict[str, Any]:
        """Return the state of an optimizer of this wrapper, by names of parameters.

        Every rank must call this. Parameters that no gradient has reached have no state. Of kind
        ``"sharded"``, an optimizer that has not stepped yet gives the state that it begins with,
        for ``torch.distributed.checkpoint.load`` to fill.

        Args:
            optimizer: Built from parameters of this wrapper.
            kind: ``"full"`` for all of it on the CPU of the first rank, and an empty dict
                elsewhere; ``"sharded"`` for this rank's part.

        Returns:
            ``state`` and ``param_groups`` as torch's ``get_optimizer_state_dict`` has them; its
            counterpart ``set_optimizer_state_dict`` loads the full one into an optimizer of the
            bare model.

        Raises:
            ConfigError: If there is no such kind.
        """
        return self._state().read_optimizer(optimizer, kind)

    def load_optimizer_state_dict(
        self,
        optimizer: torch.optim.Optimizer,
        state_dict: Mapping[str, Any],
        *,
        kind: Literal["full", "sharded"] = "full",
    ) -> None:
        """Load what ``optimizer_state_dict`` returned, on any number of ranks.

        Every rank must call this.

        Args:
            optimizer: Built from parameters of this wrapper.
            state_dict: Of kind ``"full"``, that of the first rank counts.
            kind: As given to ``optimizer_state_dict``.

        Raises:
            ConfigError: If there is no such kind, or, on all ranks, if the state does not fit.
        """
        self._state().load_optimizer(optimizer, state_dict, kind)

    def _state(self) -> "ShardedState":
        # Its imports take long, and are needed when checkpoints are read or written only.
        from mm_dist._wrappers._sharded_state import ShardedState  # noqa: PLC0415

        return ShardedState(self.module, self.device_mesh)
