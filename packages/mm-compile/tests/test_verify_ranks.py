"""What several ranks verify, and decide about, together."""

import logging

import pytest
import torch
import torch.distributed as dist
from blocks import Stack
from test_verify import train
from timed import SteppedClock, auto, compiled
from timed import train as train_timed
from torch.nn.parallel import DistributedDataParallel
from toy import CountingBackend, needs_compile

from mm_compile import compile_model
from mm_compile._torch import torch_version

pytestmark = needs_compile
CAN_SHARD = torch_version() > (2, 6)


def sharded():
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - not in every torch

    results = []
    for regions, verify in (("auto", 0), ("auto", 2), (None, 2)):
        torch.manual_seed(0)
        model = Stack(2)
        cfg = {"backend": CountingBackend(), "regions": regions, "verify": verify}
        handle = compile_model(model, cfg)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        losses, state, random = train(model)
        results.append((losses, {key: each.full_tensor() for key, each in state.items()}, random))
        verified = [region.verified for region in handle.regions]
        if regions is None:
            assert "holds sharded modules" in verified[0].note
        elif verify:
            assert [each.num_calls for each in verified] == [2, 2]
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)


def deciding(rank, folder):
    logging.basicConfig(filename=folder / f"log{rank}", level=logging.WARNING)
    clock = SteppedClock(pytest.MonkeyPatch())
    # What rank 1 measures says that compiling does not pay; rank 0 decides.
    model, _, handle = auto(clock, compiling=30, running=0.5 if rank == 0 else 5.0)
    wrapped = DistributedDataParallel(model)
    handle.expect_steps(1000)
    seen = []
    for _ in range(112):
        train_timed(wrapped, clock, 1)
        seen.append(sum(compiled(handle)))
    assert "auto, after" in str(handle.report())
    (folder / f"auto{rank}").write_text(" ".join(map(str, seen)) + f" {handle.is_warm}")


def everything(rank, folder):
    deciding(rank, folder)
    if CAN_SHARD:
        sharded()
    dist.barrier()


# torch warns of what fully_shard does on a CPU, another thing in every version.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ranks_decide_alike_and_verify_sharded_blocks(run_ranks, tmp_path):
    run_ranks(everything, 2, tmp_path)
    first, second = ((tmp_path / f"auto{rank}").read_text() for rank in (0, 1))
    assert first == second
    assert first.startswith("0 0 0")
    assert first.endswith("5 True")
