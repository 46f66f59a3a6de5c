"""torch_npu's own optimizers, from its wheel, on CPU tensors.

They lay all parameters of a dtype end to end in one tensor, and from there on are plain torch. Only
what touches a device is replaced, all of it here: the storage helpers (``npu_combine_tensors``,
``get_part_combined_tensor``, ``get_npu_format``, ``npu_format_cast``) and the moves to the device
(``Tensor.npu``, ``Tensor.to("npu")``), besides the error codes, which read the device's settings.
"""

import contextlib
import sys
import warnings
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType
from unittest import mock

import torch

MODULES = {
    "NpuFusedAdadelta": "npu_fused_adadelta",
    "NpuFusedAdam": "npu_fused_adam",
    "NpuFusedAdamP": "npu_fused_adamp",
    "NpuFusedAdamW": "npu_fused_adamw",
    "NpuFusedBertAdam": "npu_fused_bert_adam",
    "NpuFusedLamb": "npu_fused_lamb",
    "NpuFusedRMSprop": "npu_fused_rmsprop",
    "NpuFusedRMSpropTF": "npu_fused_rmsprop_tf",
    "NpuFusedSGD": "npu_fused_sgd",
}


def npu_combine_tensors(tensors):
    """Lay tensors end to end in one, and make them views of it."""
    if not tensors:
        return None
    combined = torch.cat([tensor.detach().flatten() for tensor in tensors])
    start = 0
    for tensor in tensors:
        piece = combined[start : start + tensor.numel()]
        tensor.data = piece.view(tensor.shape)
        start += tensor.numel()
    return combined


def get_part_combined_tensor(combined, index, size):
    return None if combined is None or size == 0 else combined[index : index + size]


def make_package(name, folder=None, **contents):
    module = ModuleType(name)
    module.__path__ = [] if folder is None else [str(folder)]
    vars(module).update(contents)
    sys.modules[name] = module
    return module


@contextlib.contextmanager
def open_originals(wheel, folder):
    """Give the nine classes of a wheel, unpacked to ``folder``, while the context lasts.

    The package ``torch_npu`` is not imported: without an NPU's libraries it could not be.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("torch_npu/optim/")]
        archive.extractall(folder, names)
    plain_to = torch.Tensor.to

    def to(tensor, *args, **kwargs):
        return tensor if args == ("npu",) else plain_to(tensor, *args, **kwargs)

    helpers = {
        "npu_combine_tensors": npu_combine_tensors,
        "get_part_combined_tensor": get_part_combined_tensor,
    }
    with (
        mock.patch.dict(sys.modules),
        mock.patch.object(torch.Tensor, "to", to),
        mock.patch.object(torch.Tensor, "npu", lambda tensor: tensor, create=True),
    ):
        make_package(
            "torch_npu",
            get_npu_format=lambda tensor: 2,  # noqa: ARG005
            npu_format_cast=lambda tensor, format_: tensor,  # noqa: ARG005
        )
        make_package("torch_npu.utils", **helpers)
        codes = dict.fromkeys(("VALUE", "TYPE", "NOT_SUPPORT", "PARAM"), "")
        error_code = make_package("torch_npu.utils._error_code", pta_error=str)
        error_code.ErrCode = ModuleType("ErrCode")
        vars(error_code.ErrCode).update(codes)
        make_package("torch_npu.optim", Path(folder) / "torch_npu" / "optim")
        yield {name: import_class(module, name) for name, module in MODULES.items()}


def import_class(module, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "\s" and the like in docstrings
        return getattr(import_module(f"torch_npu.optim.{module}"), name)
