"""What builds optimizer wrappers whose parameters differ in their settings."""

from ._default import DefaultOptimWrapperConstructor
from ._layer_decay import LearningRateDecayOptimWrapperConstructor
from ._paramwise import ParamwiseRules
from ._walk import NamedParameter, walk_parameters

__all__ = [
    "DefaultOptimWrapperConstructor",
    "LearningRateDecayOptimWrapperConstructor",
    "NamedParameter",
    "ParamwiseRules",
    "walk_parameters",
]
