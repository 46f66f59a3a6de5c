"""Constructors of optimizer wrappers with parameter groups."""

from ._default import DefaultOptimWrapperConstructor
from ._layer_decay import (
    LayerDecayOptimizerConstructor,
    LearningRateDecayOptimWrapperConstructor,
)
from ._paramwise import ParamwiseRules
from ._walk import NamedParameter, walk_parameters

__all__ = [
    "DefaultOptimWrapperConstructor",
    "LayerDecayOptimizerConstructor",
    "LearningRateDecayOptimWrapperConstructor",
    "NamedParameter",
    "ParamwiseRules",
    "walk_parameters",
]
