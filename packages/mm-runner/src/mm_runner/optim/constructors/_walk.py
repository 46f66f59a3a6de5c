"""The parameters of a model, with what a rule may ask about each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from mm_runner.model import unwrap_model

__all__ = ["NamedParameter", "walk_parameters"]

# mmcv's and torchvision's; known by name so that neither need be installed.
_DEFORMABLE = {"DeformConv2d", "ModulatedDeformConv2d"}
_NORMS = (
    nn.modules.batchnorm._NormBase,  # noqa: SLF001 - the base of batch and instance norms
    nn.GroupNorm,
    nn.LayerNorm,
)


@dataclass(frozen=True)
class NamedParameter:
    """A parameter under one of its names.

    Attributes:
        name: In the model, without wrappers.
        parameter: The parameter; one that is shared comes once under each name.
        module: The module that owns it.
        in_deformable: Whether that is a part of a deformable convolution, such as the layer of its
            offsets; the convolution's own weight and bias are like any other's.
    """

    name: str
    parameter: nn.Parameter
    module: nn.Module
    in_deformable: bool

    @property
    def is_norm(self) -> bool:
        """Whether a normalisation layer owns it."""
        kind = type(self.module).__name__.rstrip("123d")
        return isinstance(self.module, _NORMS) or kind.endswith("Norm")

    @property
    def is_bias(self) -> bool:
        """Whether it is called ``bias``."""
        return self.name.rpartition(".")[2] == "bias"

    @property
    def is_depthwise(self) -> bool:
        """Whether a depth-wise convolution owns it."""
        groups = getattr(self.module, "groups", 1)
        is_convolution = isinstance(self.module, nn.modules.conv._ConvNd)  # noqa: SLF001
        return is_convolution and groups > 1 and groups == self.module.in_channels

    @property
    def is_flat(self) -> bool:
        """Whether it has one dimension; a single number has none."""
        return self.parameter.ndim == 1

    @property
    def is_offset(self) -> bool:
        """Whether it belongs to the offsets of a deformable convolution."""
        return self.in_deformable and "conv_offset" in self.name


def walk_parameters(model: nn.Module) -> Iterator[NamedParameter]:
    """Yield every parameter under every name that it has, in the order of the modules."""
    yield from _walk(unwrap_model(model), "", in_deformable=False)


def _walk(module: nn.Module, prefix: str, *, in_deformable: bool) -> Iterator[NamedParameter]:
    # Not named_parameters and named_children: these leave out what they have met before.
    for name, parameter in module._parameters.items():  # noqa: SLF001
        if parameter is not None:
            yield NamedParameter(f"{prefix}{name}", parameter, module, in_deformable)
    kinds = {kind.__name__ for kind in type(module).__mro__}
    in_deformable = in_deformable or bool(kinds & _DEFORMABLE)
    for name, child in module._modules.items():  # noqa: SLF001
        if child is not None:
            yield from _walk(unwrap_model(child), f"{prefix}{name}.", in_deformable=in_deformable)
