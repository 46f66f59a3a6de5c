"""Communication hooks that average gradients with less traffic.

torch's own bfloat16 hook refuses all backends but NCCL and XCCL.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from mm_dist._errors import ConfigError, TorchVersionError

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
_Future = torch.futures.Future[torch.Tensor]


def install_comm_hook(wrapper: Any, comm_hook: str) -> None:
    """Register a communication hook on a data-parallel wrapper."""
    if not isinstance(comm_hook, str) or comm_hook not in _DTYPES:
        raise ConfigError(
            f"comm_hook={comm_hook!r} is not known; there are 'fp16' and 'bf16'. Give others to "
            "register_comm_hook(state, hook) of the wrapper."
        )
    version = tuple(map(int, str(torch.__version__).split(".")[:2]))
    if comm_hook == "bf16" and version < (2, 4):
        raise TorchVersionError(
            f"comm_hook='bf16' needs torch 2.4 or newer; this is {torch.__version__}. Use "
            "comm_hook='fp16', or upgrade torch."
        )
    wrapper.register_comm_hook((wrapper.process_group, _DTYPES[comm_hook]), average_compressed)


def average_compressed(state: tuple[Any, torch.dtype], bucket: GradBucket) -> _Future:
    """Average a bucket of gradients, communicated in a shorter dtype."""
    group, dtype = state
    buffer = bucket.buffer()
    # Divided before it is rounded: the sum of all ranks then is in the range of the dtype.
    sent = buffer.div_(dist.get_world_size(group)).to(dtype)
    work: Any = dist.all_reduce(sent, group=group, async_op=True)
    finished: _Future = work.get_future().then(lambda done: buffer.copy_(done.value()[0]))
    return finished


def no_communication(
    state: Any,  # noqa: ARG001 (torch passes it)
    bucket: GradBucket,
) -> _Future:
    """Return the gradients of this rank as they are: for a process group without peers."""
    future: _Future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
