"""Communication hooks that average gradients with less traffic.

torch's own hooks serve part of the backends: its bfloat16 hook refuses all but NCCL and XCCL, and
PowerSGD starts collectives from gloo's threads, in an order that differs by rank.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from mm_dist._errors import ArgumentTypeError, ConfigError, TorchVersionError

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_Future = torch.futures.Future[torch.Tensor]


def install_comm_hook(wrapper: Any, comm_hook: Any) -> Any:
    """Register a communication hook on a data-parallel wrapper and return its state.

    Args:
        wrapper: torch's ``DistributedDataParallel`` or a subclass, without a hook.
        comm_hook: ``"fp16"``, ``"bf16"``, ``"powerSGD"``; a function ``(state, bucket)`` as torch
            takes it; or a dict with one of these as ``type`` and its options: those of torch's
            ``PowerSGDState``, or ``state`` for a function.

    Raises:
        ArgumentTypeError: If it is none of these.
        ConfigError: If a name or an option is not known.
        TorchVersionError: If gloo is to add bfloat16 before torch 2.4.
    """
    options = dict(comm_hook) if isinstance(comm_hook, dict) else {"type": comm_hook}
    kind = options.pop("type", None)
    group = wrapper.process_group
    state: Any = None
    if kind == "powerSGD":
        # It needs NumPy at import.
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415

        try:
            state = powerSGD_hook.PowerSGDState(group, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"comm_hook='powerSGD' with {options}: {error}") from error
        wrapper.register_comm_hook((state, powerSGD_hook.powerSGD_hook), approximate_by_power_sgd)
        return state
    if callable(kind):
        state = options.pop("state", None)
    elif not isinstance(kind, str):
        raise ArgumentTypeError(
            f"comm_hook={comm_hook!r}: give a name, a function (state, bucket), or a dict with one "
            "of these as 'type'."
        )
    elif kind not in _DTYPES:
        raise ConfigError(
            f"comm_hook={kind!r} is not known; there are: fp16, bf16, powerSGD, or a function "
            "(state, bucket)."
        )
    version = tuple(map(int, str(torch.__version__).split(".")[:2]))
    if kind == "bf16" and version < (2, 4) and "gloo" in str(dist.get_backend(group)):
        raise TorchVersionError(
            f"comm_hook='bf16' over gloo needs torch 2.4 or newer; this is {torch.__version__}. "
            "Use comm_hook='fp16', or upgrade torch."
        )
    if options:
        raise ConfigError(f"comm_hook {kind!r} has no options {', '.join(options)}.")
    if callable(kind):
        wrapper.register_comm_hook(state, kind)
    else:
        wrapper.register_comm_hook((group, _DTYPES[kind]), average_compressed)
    return state


def average_compressed(state: tuple[Any, torch.dtype], bucket: GradBucket) -> _Future:
    """Average a bucket of gradients, communicated in a shorter dtype."""
    group, dtype = state
    buffer = bucket.buffer()
    # Divided before it is rounded: the sum of all ranks then is in the range of the dtype.
    sent = buffer.div_(dist.get_world_size(group)).to(dtype)
    work: Any = dist.all_reduce(sent, group=group, async_op=True)
    finished: _Future = work.get_future().then(lambda done: buffer.copy_(done.value()[0]))
    return finished


def approximate_by_power_sgd(state: tuple[Any, Any], bucket: GradBucket) -> _Future:
    """Average a bucket of gradients by torch's PowerSGD, in the same order on all ranks."""
    power_sgd, hook = state
    future: _Future = hook(power_sgd, bucket)
    if bucket.buffer().is_cpu:
        # gloo's threads start its later collectives; another bucket's must not come between them
        # on one rank and not on another.
        future.wait()
    return future


def no_communication(
    state: Any,  # noqa: ARG001 (torch passes it)
    bucket: GradBucket,
) -> _Future:
    """Return the gradients of this rank as they are: for a process group without peers.

    torch's data-parallel backward needs the future of a collective, which its fake backend does
    not give. ``wrapper.register_comm_hook(None, no_communication)``, or as ``comm_hook``.
    """
    future: _Future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
