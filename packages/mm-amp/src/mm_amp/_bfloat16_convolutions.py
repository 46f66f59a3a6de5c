"""Layers that old versions of torch run slowly, or not at all, in bfloat16 on CUDA."""

import logging
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from ._fp32_islands import is_fp32_island

_logger = logging.getLogger(__name__)
_SWITCH = "TORCH_CUDNN_V8_API_ENABLED"  # torch 1 takes "1" for yes; torch 2 has it on by default


def warn_about_bfloat16(model: Any, device_type: str, dtype: torch.dtype) -> None:
    """Warn if this torch lacks what the model needs in bfloat16; fp32 islands need nothing."""
    if device_type != "cuda" or dtype != torch.bfloat16 or not isinstance(model, nn.Module):
        return
    if _has_slow_convolutions() and _has_layer(model, _ConvNd):
        _logger.warning(
            "torch %s runs bfloat16 convolutions slowly unless cuDNN v8 is switched on: set %s=1 "
            "before starting Python, or use torch 2.0 or newer.",
            torch.__version__,
            _SWITCH,
        )
    if _lacks_upsampling() and _has_layer(model, nn.Upsample):
        _logger.warning(
            "torch %s cannot upsample in bfloat16 on CUDA: keep the Upsample layers in float32 "
            "with fp32_modules, or use torch 2.1 or newer.",
            torch.__version__,
        )


def _has_slow_convolutions() -> bool:
    if hasattr(torch, "compile") or torch.version.hip is not None:  # torch 2, or not cuDNN at all
        return False
    cudnn: Any = torch.backends.cudnn
    return cudnn.is_available() and cudnn.enabled and os.environ.get(_SWITCH) != "1"


def _lacks_upsampling() -> bool:
    return not hasattr(nn.Module, "compile")  # which came with torch 2.1, as did the kernels


def _has_layer(model: nn.Module, kind: type[nn.Module]) -> bool:
    return any(isinstance(module, kind) for module in _modules_in_low_precision(model))


def _modules_in_low_precision(module: nn.Module) -> Iterator[nn.Module]:
    if not is_fp32_island(module):
        yield module
        for child in module.children():
            yield from _modules_in_low_precision(child)
