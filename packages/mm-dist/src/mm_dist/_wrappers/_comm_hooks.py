"""Communication hooks that average gradients with less traffic.

torch's own hooks serve part of the backends: that for bfloat16 is refused beside NCCL and XCCL, by
its name, and PowerSGD starts collectives from threads of gloo, in an order that differs by rank.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from mm_dist._errors import ArgumentTypeError, ConfigError
from mm_dist._suggestion import suggest_name

_WIRE_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_NAMES = ("fp16", "bf16", "powerSGD")
# Those whose callbacks run in threads of their own, and that may lack a dtype.
_THREADED_BACKENDS = ("gloo", "mpi", "ucc")


def install_comm_hook(wrapper: Any, comm_hook: Any) -> Any:
    """Let a data-parallel wrapper average its gradients by a hook.

    Args:
        wrapper: torch's ``DistributedDataParallel`` or a subclass, with no hook so far.
        comm_hook: ``"fp16"``, ``"bf16"``, ``"powerSGD"``; a function ``(state, bucket)`` as torch
            takes it; or a dict with one of these as ``type`` and its options: those of torch's
            ``PowerSGDState``, or ``state`` for a function.

    Returns:
        The state: torch's ``PowerSGDState``, or that of a function; ``None`` without one.

    Raises:
        ArgumentTypeError: If it is none of these.
        ConfigError: If a name or an option is not known, or does not go with the wrapper.
    """
    kind, options = _read_spec(comm_hook)
    if callable(kind):
        state = options.pop("state", None)
        _refuse_options(getattr(kind, "__name__", repr(kind)), options, ("state",))
        wrapper.register_comm_hook(state, kind)
        return state
    group = wrapper.process_group
    is_threaded = any(name in str(dist.get_backend(group)) for name in _THREADED_BACKENDS)
    if kind == "powerSGD":
        state, hook = _build_power_sgd(wrapper, options)
        wrapper.register_comm_hook((state, hook, is_threaded), approximate_by_power_sgd)
        return state
    _refuse_options(kind, options, ())
    dtype = _WIRE_DTYPES[kind]
    # gloo before torch 2.4 cannot add bfloat16: float32 then carries what was rounded.
    is_sent_rounded = not is_threaded or _can_reduce(dtype, wrapper.device, group)
    wrapper.register_comm_hook((group, dtype, is_sent_rounded), average_compressed)
    return None


def _read_spec(comm_hook: Any) -> tuple[Any, dict[str, Any]]:
    options = dict(comm_hook) if isinstance(comm_hook, dict) else {"type": comm_hook}
    kind = options.pop("type", None)
    if callable(kind):
        return kind, options
    if not isinstance(kind, str):
        raise ArgumentTypeError(
            f"comm_hook={comm_hook!r} is neither a name ({', '.join(_NAMES)}), nor a function "
            "(state, bucket), nor a dict with one of these as 'type'."
        )
    by_lower = {name.lower(): name for name in _NAMES}
    if kind.lower() not in by_lower:
        raise ConfigError(
            f"comm_hook={kind!r} is not known; there are: {', '.join(_NAMES)}, or a function "
            f"(state, bucket).{suggest_name(kind, by_lower)}"
        )
    return by_lower[kind.lower()], options


def _refuse_options(kind: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            listed = f"its options are: {', '.join(known)}" if known else "it has none"
            raise ConfigError(
                f"comm_hook {kind!r} has no option {name!r}; {listed}.{suggest_name(name, known)}"
            )


def _can_reduce(dtype: torch.dtype, device: torch.device, group: Any) -> bool:
    try:
        dist.all_reduce(torch.zeros(1, dtype=dtype, device=device), group=group)
    except RuntimeError:  # before anything is sent, so on all ranks alike
        return False
    return True


def average_compressed(
    state: tuple[Any, torch.dtype, bool], bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients, communicated in a shorter dtype."""
    group, dtype, is_sent_rounded = state
    buffer = bucket.buffer()
    buffer.div_(dist.get_world_size(group))
    if buffer.is_sparse:
        return _sum_over_ranks(buffer, group, lambda done: done.value()[0])
    # Divided before it is rounded: the sum of all ranks then is in the range of the dtype.
    sent = buffer.to(dtype) if is_sent_rounded else buffer.to(dtype).float()
    return _sum_over_ranks(sent, group, lambda done: buffer.copy_(done.value()[0]))


def _sum_over_ranks(
    tensor: Tensor, group: Any, finish: Callable[[Any], Tensor]
) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(tensor, group=group, async_op=True)
    finished: torch.futures.Future[torch.Tensor] = work.get_future().then(finish)
    return finished


def _build_power_sgd(wrapper: Any, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return torch's state and hook."""
    for name, module in wrapper.module.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ConfigError(
                f"comm_hook='powerSGD' approximates dense gradients, and {name} has sparse=True; "
                "use sparse=False there, or comm_hook='fp16' or 'bf16'."
            )
    try:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"comm_hook='powerSGD' is torch's, which cannot be imported here ({error}); it needs "
            "numpy: pip install numpy."
        ) from error
    known = tuple(inspect.signature(powerSGD_hook.PowerSGDState).parameters)[1:]
    _refuse_options("powerSGD", options, known)
    try:
        state = powerSGD_hook.PowerSGDState(wrapper.process_group, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"comm_hook='powerSGD' with {options}: {error}") from error
    return state, powerSGD_hook.powerSGD_hook


def approximate_by_power_sgd(
    state: tuple[Any, Any, bool], bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients by torch's PowerSGD, in the same order on all ranks."""
    power_sgd, hook, is_threaded = state
    future: torch.futures.Future[torch.Tensor] = hook(power_sgd, bucket)
    if is_threaded:
        # Its later collectives start from the backend's threads; another bucket's must not come
        # between them on one rank and not on another.
        future.wait()
    return future


def no_communication(
    state: Any,  # noqa: ARG001 (torch passes it)
    bucket: GradBucket,
) -> torch.futures.Future[torch.Tensor]:
    """Return the gradients of this rank as they are: for a process group without peers.

    torch's data-parallel backward needs the future of a collective, which its fake backend does
    not give. ``wrapper.register_comm_hook(None, no_communication)``, or as ``comm_hook``.
    """
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
