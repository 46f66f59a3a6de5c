"""The norm of many gradients together."""

from collections.abc import Iterable

import torch
from torch import Tensor

from ._operands import computing_dtype
from ._units import AbstractUnit


def total_norm(units: Iterable[AbstractUnit]) -> Tensor:
    """Return the Euclidean norm of all gradients of ``units``, 0-d, on the device of the first."""
    norms = []
    for unit in units:
        gradient = unit.gather_gradient()
        dtype = computing_dtype(gradient.dtype)  # the square of a half soon overflows
        norms.append(torch.linalg.vector_norm(gradient, dtype=dtype))
    together = torch.stack([norm.to(norms[0]) for norm in norms])
    norm: Tensor = torch.linalg.vector_norm(together)
    return norm
