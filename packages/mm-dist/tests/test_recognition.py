import sys

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mm_dist import MMDistributedDataParallel, is_model_wrapper


@pytest.mark.usefixtures("group_of_one")
def test_torch_wrappers_and_ours_are_wrappers():
    assert is_model_wrapper(DistributedDataParallel(nn.Linear(2, 2)))
    assert is_model_wrapper(MMDistributedDataParallel(nn.Linear(2, 2)))
    assert is_model_wrapper(DataParallel(nn.Linear(2, 2)))
    assert not is_model_wrapper(nn.Linear(2, 2))


@pytest.mark.skipif(
    not hasattr(torch, "compile") or sys.version_info >= (3, 14), reason="nothing to compile with"
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's compiler imports it
@pytest.mark.usefixtures("group_of_one")
def test_compiled_model_is_what_was_compiled():
    wrapper = MMDistributedDataParallel(nn.Linear(2, 2))
    assert is_model_wrapper(torch.compile(wrapper))
    assert not is_model_wrapper(torch.compile(nn.Linear(2, 2)))


@pytest.mark.usefixtures("group_of_one")
def test_fully_sharded_modules_are_wrappers():
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    mesh = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh("cpu", (1,))
    assert is_model_wrapper(fsdp.fully_shard(nn.Linear(2, 2), mesh=mesh))
