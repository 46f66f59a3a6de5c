"""What goes on around a region: data-parallel wrappers, checkpointing, and hooks."""

import sys
from collections.abc import Callable
from types import FrameType

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._errors import TorchVersionError
from ._torch import shares_code, torch_version

# Since torch 2.0; before, nothing is compiled.
_backward_id: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)  # noqa: SLF001


def is_in_backward() -> bool:
    """Whether autograd runs a backward pass in this thread.

    A forward that is called there repeats an earlier one whose results were not kept.
    """
    return _backward_id() != -1


def refuse_checkpointing() -> None:
    """Refuse to compile in a forward that is checkpointed, where this torch cannot.

    Before torch 2.6 checkpointing takes what dynamo and the backend compute while they trace for
    what the forward keeps, and fails in backward. That of the reentrant kind records nothing.

    Raises:
        TorchVersionError: If torch is older than 2.6 and such a forward runs.
    """
    checkpointing = sys.modules.get("torch.utils.checkpoint")
    if torch_version() >= (2, 6) or checkpointing is None or not torch.is_grad_enabled():
        return
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - nothing else tells
    while frame is not None and frame.f_code.co_filename != checkpointing.__file__:
        frame = frame.f_back
    if frame is not None and frame.f_code.co_name not in ("forward", "backward"):
        raise TorchVersionError(
            f"checkpointing around what is compiled needs PyTorch >= 2.6; this is PyTorch "
            f"{torch.__version__}. Checkpoint inside of it, or set use_reentrant=True"
        )


def active_ddp() -> DistributedDataParallel | None:
    """Return torch's data-parallel wrapper whose forward runs now, or None."""
    wrapper: DistributedDataParallel | None = DistributedDataParallel._active_ddp_module  # noqa: SLF001
    return wrapper


class Surroundings:
    """Lets dynamo cut graphs where the gradient buckets of the active wrapper end, if there is one.

    Of a model compiled as a whole all gradients would be ready at once, at the very end of
    backward, with nothing left to overlap their exchange with. So dynamo cuts its graph, with a
    small first bucket for what backward reaches first; a wrapper with smaller buckets than that
    makes it raise. Regions end anyway where they end: of these only one larger than a bucket needs
    a cut, and none needs a first bucket of its own.

    Every call of a region passes here, compiling or not: hence no context manager.

    Args:
        is_whole: Whether the model is compiled as a whole, and not by regions.
    """

    def __init__(self, *, is_whole: bool) -> None:
        self._is_whole = is_whole

    def enter(self) -> int | None:
        """Change torch's setting; returns what :meth:`leave` puts back."""
        wrapper = active_ddp()
        if wrapper is None:
            return None
        first: int = dist._DEFAULT_FIRST_BUCKET_BYTES  # type: ignore[attr-defined]  # noqa: SLF001
        size = int(wrapper.bucket_bytes_cap)
        # dynamo has no other way to be told.
        dist._DEFAULT_FIRST_BUCKET_BYTES = min(first, size) if self._is_whole else size  # type: ignore[attr-defined]  # noqa: SLF001
        return first

    def leave(self, first: int | None) -> None:
        """Put the setting back."""
        if first is not None:
            dist._DEFAULT_FIRST_BUCKET_BYTES = first  # type: ignore[attr-defined]  # noqa: SLF001


class HookGuards:
    """Lets dynamo ask, before it runs code, whether the modules in it have the same hooks.

    It does not by itself: hooks registered on a module in a region would be passed over if they
    came after the code, or if the code was compiled for another region of its kind. What code asks
    before it runs is written right after its graphs were compiled: so a backend begins this, and
    the region that was called ends it. A call that compiles nothing pays nothing.
    """

    def __init__(self) -> None:
        self.is_begun = False

    def begin(self) -> None:
        """Change dynamo's setting, until :meth:`end`."""
        if self.is_begun or not shares_code():  # older ones ask in ways of their own, or not at all
            return
        from torch._dynamo import config  # noqa: PLC0415 - imports dynamo

        self.is_begun = bool(config.skip_nnmodule_hook_guards)
        if self.is_begun:
            config.skip_nnmodule_hook_guards = False

    def end(self) -> None:
        """Put it back."""
        from torch._dynamo import config  # noqa: PLC0415 - imports dynamo

        self.is_begun = False
        config.skip_nnmodule_hook_guards = True
