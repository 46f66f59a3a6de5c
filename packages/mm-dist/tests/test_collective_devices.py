"""Data on one device, communication on another: through stand-ins, as there is no accelerator."""

import torch

import mm_dist
from mm_dist._collectives import _state, _tensors

# torch copies to it, as it would to an accelerator, and does not take it for the device it is on.
OTHER_DEVICE = torch.device("cpu", 0)


def _expect_tensors_to_travel(rank):
    _tensors.communication_device = lambda *_, **__: OTHER_DEVICE
    leaf = torch.ones(2, requires_grad=True)
    for data in (torch.ones(2), torch.ones(2).bfloat16(), torch.ones(2).bool(), leaf):
        mm_dist.all_reduce(data)
        assert data.tolist() == ([2, 2] if data.dtype != torch.bool else [True, True])
    assert _state.group_state().served == set()
    loss, count = torch.tensor(rank + 1.0), torch.tensor(rank)
    mm_dist.all_reduce_dict({"loss": loss, "nested": {"count": count}})
    assert (loss.item(), count.item()) == (3, 1)
    assert [t.item() for t in mm_dist.all_gather(torch.tensor(rank))] == [0, 1]
    assert len(mm_dist.gather({"a": torch.ones(rank)}, 1)) == 2 * rank
    data = torch.tensor([rank == 1])
    mm_dist.broadcast(data, src=1)
    assert data.item()
    assert mm_dist.all_gather_object({"rank": rank}) == [{"rank": 0}, {"rank": 1}]
    assert mm_dist.gather_object("x" * 1000 * rank, dst=1) in (None, ["", "x" * 1000])
    assert mm_dist.collect_results([rank], 2) in (None, [0, 1])


def test_data_travels_through_the_device_of_the_group_with_a_stand_in(run_ranks):
    run_ranks(_expect_tensors_to_travel, 2)
