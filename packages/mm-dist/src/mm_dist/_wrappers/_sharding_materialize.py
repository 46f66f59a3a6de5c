"""Give a group of modules their values, equal on all ranks, before it is sharded."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mm_dist._errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

InitFunction = Callable[[nn.Module], Any]


class Materializer:
    """Puts modules from the meta device on a real one, and initialises them.

    Used for one group of modules after the other, so that the whole model never exists at once.

    Args:
        root: The model, for names in messages.
        device: Where the values go.
        init_function: Initialises the parameters and buffers that a module holds itself; ``None``
            uses the module's ``reset_parameters()``.
    """

    def __init__(
        self, root: nn.Module, device: torch.device, init_function: InitFunction | None
    ) -> None:
        self._names = {module: name for name, module in root.named_modules()}
        self._device = device
        self._init_function = init_function
        # A tied parameter is one object at several places, and has to stay one.
        self._replacements: dict[Tensor, Tensor] = {}

    def materialize(self, members: Iterable[nn.Module]) -> None:
        """Give each member that holds something on the meta device real, initial values.

        Raises:
            ConfigError: If nothing says how, or values are left that were not initialised.
        """
        empty = [
            module for module in members if any(t.is_meta for _, t in _own_named_tensors(module))
        ]
        for module in empty:
            self._replace_tensors(module)
        for module in empty:
            self._initialize(module)
        for module in empty:
            self._check(module)

    def current(self, parameters: Iterable[nn.Parameter]) -> set[nn.Parameter]:
        """Return parameters as they are now, for those that have been given values."""
        replacements: dict[Any, Any] = self._replacements
        return {replacements.get(parameter, parameter) for parameter in parameters}

    def _replace_tensors(self, module: nn.Module) -> None:
        for name, tensor in list(_own_named_tensors(module)):
            if tensor.is_meta:
                setattr(module, name, self._replacement(tensor))

    def _replacement(self, tensor: Tensor) -> Tensor:
        if tensor not in self._replacements:
            values = torch.empty_like(tensor, device=self._device)
            # So that we can tell what nobody initialised.
            values.fill_(_placeholder(values.dtype))
            self._replacements[tensor] = (
                nn.Parameter(values, tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else values
            )
        return self._replacements[tensor]

    def _initialize(self, module: nn.Module) -> None:
        # torch's own MultiheadAttention and Transformer have the method with an underscore.
        private = getattr(module, "_reset_parameters", None)
        reset: Any = getattr(module, "reset_parameters", private)
        with torch.no_grad():
            if self._init_function is not None:
                self._init_function(module)
            elif callable(reset):
                reset()
            else:
                raise ConfigError(
                    f"{self._describe(module)} is on the meta device and has no "
                    "reset_parameters(); pass param_init_fn, which is called with each such "
                    "module, or build the model on a real device."
                )

    def _check(self, module: nn.Module) -> None:
        for name, tensor in _own_named_tensors(module):
            if tensor.is_meta or _is_untouched(tensor):
                how = "param_init_fn" if self._init_function else "reset_parameters()"
                raise ConfigError(
                    f"{how} did not initialise {name!r} of {self._describe(module)}, which was on "
                    "the meta device; let it fill every parameter and buffer that the module "
                    "holds itself."
                )

    def _describe(self, module: nn.Module) -> str:
        name = self._names.get(module)
        return f"{type(module).__name__} {name!r}" if name else type(module).__name__


def _own_named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Return the parameters and buffers that a module holds itself, all names of each."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    yield from module.named_buffers(recurse=False, remove_duplicate=False)


def copy_from_first_rank(
    members: Iterable[nn.Module], mesh: "DeviceMesh", device: torch.device
) -> None:
    """Move what modules hold themselves to ``device``, with the values of the mesh's first rank."""
    tensors = {tensor: None for module in members for _, tensor in _own_named_tensors(module)}
    for tensor in tensors:
        if hasattr(tensor, "placements"):  # distributed already, by whoever divided the model
            continue
        if tensor.device != device:
            tensor.data = tensor.data.to(device)
        if tensor.numel():
            broadcast_over(mesh, tensor.detach())


def broadcast_over(mesh: "DeviceMesh", tensor: Tensor) -> None:
    """Overwrite ``tensor`` by that of the mesh's first rank, in place."""
    # Not every backend sends complex numbers, and none what is not contiguous.
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    sent = plain.contiguous()
    for group in mesh.get_all_groups():
        dist.broadcast(sent, dist.get_global_rank(group, 0), group)
    if sent is not plain:
        plain.copy_(sent)


def _placeholder(dtype: torch.dtype) -> float | int:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return 0 if dtype == torch.bool else torch.iinfo(dtype).max


def _is_untouched(tensor: Tensor) -> bool:
    if tensor.is_floating_point() or tensor.is_complex():
        return bool(tensor.isnan().any())
    # One such number can be meant; booleans have no value to spare.
    is_countable = tensor.dtype != torch.bool and tensor.numel() > 0
    return is_countable and bool((tensor == _placeholder(tensor.dtype)).all())
