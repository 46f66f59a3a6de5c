"""The ``NpuFused*`` optimizers, one file each.

``_npu_fused`` chooses between ``torch_npu``'s class and the portable one, and writes state dicts.
The portable Adam, AdamW and SGD are torch's own (``_torch_rule``); the others have update rules of
this package (``_stacked_rule``). ``_guard`` checks what ``torch_npu``'s classes are given.
"""

from ._adadelta import NpuFusedAdadelta
from ._adam import NpuFusedAdam
from ._adamp import NpuFusedAdamP
from ._adamw import NpuFusedAdamW
from ._bert_adam import NpuFusedBertAdam
from ._lamb import NpuFusedLamb
from ._rmsprop import NpuFusedRMSprop, NpuFusedRMSpropTF
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
