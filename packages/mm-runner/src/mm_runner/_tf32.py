"""Whether float32 matrix products are computed in TF32."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["uses_tf32"]


def uses_tf32() -> bool:
    """Return whether CUDA multiplies float32 matrices in TF32."""
    matmul: Any = torch.backends.cuda.matmul
    # Where the newer switch is set, asking for the older one is an error.
    if torch.__version__ >= "2.9":
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)
