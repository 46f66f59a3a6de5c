"""The ``NpuFused*`` optimizers, one file each.

``_named`` holds what all share. Adam, AdamW and SGD are torch's own (``_on_torch``); the others run
rules of ours (``_blockwise``) over stacks of small tensors (``_units``) and blocks of large ones
(``_rules``), or compiled (``_compiled``).
"""

from ._adadelta import NpuFusedAdadelta
from ._adam import NpuFusedAdam
from ._adamp import NpuFusedAdamP
from ._adamw import NpuFusedAdamW
from ._bert_adam import NpuFusedBertAdam
from ._lamb import NpuFusedLamb
from ._rmsprop import NpuFusedRMSprop
from ._rmsprop_tf import NpuFusedRMSpropTF
from ._sgd import NpuFusedSGD

__all__ = [
    "NpuFusedAdadelta",
    "NpuFusedAdam",
    "NpuFusedAdamP",
    "NpuFusedAdamW",
    "NpuFusedBertAdam",
    "NpuFusedLamb",
    "NpuFusedRMSprop",
    "NpuFusedRMSpropTF",
    "NpuFusedSGD",
]
