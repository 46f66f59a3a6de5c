"""Images and kernels with channels last, as many devices compute them fastest."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mm_runner.data import as_channels_last, map_tensors
from mm_runner.model import unwrap_model

__all__ = ["use_channels_last"]


def use_channels_last(model: nn.Module) -> None:
    """Lay out the model's tensors of four dimensions so, in place, and what it will be given.

    Batches that arrive as images are laid out where they are copied; those that a data preprocessor
    stacks first, behind it.

    Args:
        model: Wrapped or not; its optimizer is not built yet.
    """
    inner: Any = unwrap_model(model)
    with torch.no_grad():
        for tensor in (*inner.parameters(), *inner.buffers()):
            tensor.data = as_channels_last(tensor.data)  # 5-d ones know another format
    preprocessor = getattr(inner, "data_preprocessor", None)
    if isinstance(preprocessor, nn.Module):
        preprocessor.register_forward_hook(_lay_out)


def _lay_out(module: nn.Module, args: Any, batch: Any) -> Any:  # noqa: ARG001 - torch's signature
    return map_tensors(batch, as_channels_last)
