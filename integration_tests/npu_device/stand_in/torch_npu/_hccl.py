"""The process-group backend ``hccl``: gloo, in the memory of the device, for its tensors only."""

import torch

from torch_npu import _C


def _create(options, pg_options):
    del pg_options
    gloo = torch.distributed.ProcessGroupGloo(
        options.store, options.group_rank, options.group_size, options.timeout
    )
    return _C.Hccl(gloo)


def register():
    torch.distributed.Backend.register_backend("hccl", _create, extended_api=True, devices=["npu"])
