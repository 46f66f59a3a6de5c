"""Convolutions in bfloat16 are slow on CUDA with torch 1 unless cuDNN's newer API is on."""

import logging
import os
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

_logger = logging.getLogger(__name__)
_SWITCH = "TORCH_CUDNN_V8_API_ENABLED"  # read by torch 1.x; torch 2 has it on by default


def warn_about_slow_convolutions(model: Any, device_type: str, dtype: torch.dtype) -> None:
    """Warn if this torch would run the model's convolutions in bfloat16 without cuDNN v8."""
    if hasattr(torch, "compile") or _SWITCH in os.environ:  # torch.compile came with torch 2
        return
    if device_type != "cuda" or dtype != torch.bfloat16 or not isinstance(model, nn.Module):
        return
    if any(isinstance(module, _ConvNd) for module in model.modules()):
        _logger.warning(
            "torch %s runs bfloat16 convolutions slowly unless cuDNN v8 is switched on: set %s=1 "
            "before starting Python, or use torch 2.0 or newer.",
            torch.__version__,
            _SWITCH,
        )
