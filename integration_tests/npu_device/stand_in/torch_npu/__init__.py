"""A stand-in for torch_npu, for tests where there is no NPU. It is never shipped.

On a torch that it was built for, torch gets a device ``npu`` whose memory is the host's. On an
older one there is no such device: then ``torch.npu`` and the optimizers are there, and work on
tensors of the CPU.
"""

import importlib.util
import sys

import torch

HAS_DEVICE = importlib.util.find_spec("torch_npu._C") is not None

if HAS_DEVICE:
    from torch_npu import _C
else:
    from torch_npu import _no_device as _C  # noqa: N812 - in the place of the compiled one

# In this order: torch.npu comes with the name, and the methods of tensors need torch.npu.
if HAS_DEVICE:
    torch.utils.rename_privateuse1_backend("npu")

from torch_npu import npu

if HAS_DEVICE:
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    from torch_npu._hccl import register

    register()
    # All is done when it is asked for: memory is free again when nobody refers to it.
    _LIBRARY = torch.library.Library("aten", "IMPL")
    _LIBRARY.impl("record_stream", lambda tensor, stream: None, "PrivateUse1")  # noqa: ARG005
else:
    torch.npu = sys.modules["torch.npu"] = npu

from torch_npu import optim, profiler

__all__ = ["HAS_DEVICE", "get_npu_format", "npu", "npu_format_cast", "optim", "profiler"]
__version__ = torch.__version__.split("+")[0]


def _autoload() -> None:
    """Do nothing: torch imports this module to call it, and that is all it takes."""


def get_npu_format(tensor):
    """Say that a tensor lies in memory plainly; an NPU has formats of its own besides."""
    del tensor
    return 2


def npu_format_cast(tensor, npu_format):
    del npu_format
    return tensor
