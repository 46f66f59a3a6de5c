"""Train a DDP model on batches that may have to be repeated: ranks agree, then exchange."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ._errors import UnsupportedError
from ._first_fsdp import contains_first_fsdp
from ._gradient_sync import defer_gradient_sync

_MAX_BUCKET = 25 * 2**20  # bytes that one all-reduce takes, as DDP does by default


class DdpParts:
    """Keeps DDP from talking to other ranks in forward and backward, and does it in its place.

    A forward or backward that stops half-way on one rank must not leave the others waiting.

    Args:
        model: A model with or without DDP, as a whole or inside.

    Raises:
        UnsupportedError: If its ranks talk to each other in forward or backward in other ways.
    """

    def __init__(self, model: nn.Module) -> None:
        check_model(model)
        self._model = model
        is_ddp = [part for part in model.modules() if isinstance(part, DistributedDataParallel)]
        self._parts: list[Any] = [part for part in is_ddp if _world_size(part) > 1]
        for part in self._parts:
            _check_exchange(part)
        if self._parts:
            self._group = _host_group(self._parts[0])
            self._device = _device_for(self._group, self._parts[0])

    @property
    def is_alone(self) -> bool:
        """Whether no other rank takes part."""
        return not self._parts

    def agree(self, *values: int) -> list[int]:
        """Return the maximum of each value over the ranks."""
        if self.is_alone:
            return list(values)
        found = torch.tensor(values, dtype=torch.long, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return [int(value) for value in found.tolist()]

    @contextmanager
    def kept_silent(self) -> Iterator[None]:
        """Let forward and backward run without a word to other ranks.

        What DDP would do at the start of a forward is done now, on all ranks together.
        """
        for part in self._parts:
            part.reducer._rebuild_buckets()  # noqa: SLF001 - it is due after a first exchange of DDP's
            part.require_forward_param_sync = True
            if part.will_sync_module_buffers():
                part._sync_buffers()  # noqa: SLF001 - rank 0's go to all, as in any forward
        try:
            with defer_gradient_sync(self._model):
                for part in self._parts:
                    part.require_forward_param_sync = False
                yield
        finally:
            for part in self._parts:
                part.require_forward_param_sync = True

    def exchange_gradients(self) -> None:
        """Average the gradients over the ranks."""
        for part in self._parts:
            parameters = _averaged_parameters(part)
            self._fill_missing(parameters)
            used = [parameter for parameter in parameters if parameter.grad is not None]
            for bucket in _buckets(used):
                _average(bucket, part.process_group)

    def _fill_missing(self, parameters: list[Tensor]) -> None:
        """Give a gradient of zeros to parameters that only other ranks have used."""
        is_missing = [parameter.grad is None for parameter in parameters]
        (any_missing,) = self.agree(any(is_missing))
        if not any_missing:
            return
        on_any = self.agree(*(not missing for missing in is_missing))
        for parameter, missing, is_used in zip(parameters, is_missing, on_any, strict=True):
            if missing and is_used:
                parameter.grad = torch.zeros_like(parameter)


def check_model(model: nn.Module) -> None:
    """Raise if a rank that stops half-way in forward or backward would leave others waiting.

    Raises:
        UnsupportedError: Naming what talks to other ranks.
    """
    found = _talker(model)
    if found is not None:
        raise UnsupportedError(
            f"MicroBatcher was asked for a {type(model).__name__} with {found}: its ranks "
            "exchange data within forward and backward, so a rank out of memory there would leave "
            "the others waiting for ever. Use DistributedDataParallel, or smaller batches with "
            "accumulative_counts."
        )


def _talker(model: nn.Module) -> str | None:
    for module in model.modules():
        kind = type(module)
        if hasattr(kind, "set_requires_gradient_sync"):
            return f"a {kind.__name__} made by fully_shard"
        if isinstance(module, nn.SyncBatchNorm) and _is_distributed():
            return "SyncBatchNorm"
        is_other = hasattr(kind, "no_sync") and not issubclass(kind, DistributedDataParallel)
        if is_other and _is_distributed():
            return f"a {kind.__name__}"
    if contains_first_fsdp(model):
        return "a FullyShardedDataParallel"
    if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
        return "parameters spread over ranks (DTensor)"
    return None


def _check_exchange(part: Any) -> None:
    """Raise if what ``part`` is told about its exchange cannot be done in its place."""
    hook = part._get_ddp_logging_data().get("comm_hook")  # noqa: SLF001 - there is no other way
    if hook:
        raise UnsupportedError(
            f"MicroBatcher was asked for a {type(part).__name__} with the communication hook "
            f"{hook}, which it would pass by, as it exchanges gradients itself; leave the hook out."
        )
    if part.static_graph:  # whose first backward exchanges gradients even within no_sync()
        raise UnsupportedError(
            f"MicroBatcher was asked for a {type(part).__name__} with static_graph=True, which "
            "exchanges gradients in the first backward; leave it out: MicroBatcher exchanges them "
            "itself, after backward, and needs neither it nor find_unused_parameters."
        )


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _world_size(part: Any) -> int:
    return dist.get_world_size(part.process_group)


def _host_group(part: Any) -> Any:
    """Return a group to agree in without waiting for the device, where there can be one."""
    group = part.process_group
    if "gloo" in dist.get_backend(group) or not dist.is_gloo_available():
        return group
    if dist.get_world_size(group) < dist.get_world_size():
        return group  # a new one would have to be made by ranks that know nothing of it
    return dist.new_group(backend="gloo")


def _device_for(group: Any, part: Any) -> torch.device:
    if "gloo" in dist.get_backend(group):
        return torch.device("cpu")
    device: torch.device = next(part.parameters()).device
    return device


def _averaged_parameters(part: Any) -> list[Tensor]:
    return [
        parameter
        for name, parameter in part.module.named_parameters()
        if parameter.requires_grad and name not in part.parameters_to_ignore
    ]


def _buckets(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield gradients of one dtype and device, as many as a bucket takes."""

    def kind(parameter: Tensor) -> tuple[str, str]:
        return str(parameter.grad.dtype), str(parameter.device)  # type: ignore[union-attr]

    for _, alike in groupby(sorted(parameters, key=kind), key=kind):
        bucket: list[Tensor] = []
        for parameter in alike:
            gradient = parameter.grad
            assert gradient is not None
            size = sum(one.numel() for one in (*bucket, gradient)) * gradient.element_size()
            if bucket and size > _MAX_BUCKET:
                yield bucket
                bucket = []
            bucket.append(gradient)
        yield bucket


def _average(gradients: list[Tensor], group: Any) -> None:
    if any(gradient.is_sparse for gradient in gradients):
        raise UnsupportedError(
            "MicroBatcher cannot average sparse gradients over ranks; use sparse=False."
        )
    with torch.no_grad():
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        flat.div_(dist.get_world_size(group))  # before adding up, as DDP: float16 overflows less
        dist.all_reduce(flat, group=group)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
