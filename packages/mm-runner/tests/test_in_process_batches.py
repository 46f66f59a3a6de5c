"""Batches that the training process loads itself are those that torch's iterator gives."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mm_runner.data._in_process import begin_batches

DATA = TensorDataset(torch.arange(10.0))


class Together(TensorDataset):
    """Is asked for all samples of a batch at once."""

    def __getitems__(self, indices):
        return [(-self.tensors[0][i],) for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


def random_numbers_after(begin, make_loader):
    """Go through a loader twice; return what came, and what was left of the random numbers."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    loader = make_loader(generator)
    came = [[torch.as_tensor(one[0]).tolist() for one in begin(loader)] for _ in range(2)]
    return came, torch.rand(()).item(), torch.rand((), generator=generator).item()


@pytest.mark.parametrize(
    "make_loader",
    [
        lambda _: DataLoader(DATA, batch_size=3),
        lambda _: DataLoader(DATA, batch_size=3, shuffle=True),
        lambda generator: DataLoader(DATA, batch_size=3, shuffle=True, generator=generator),
        lambda generator: DataLoader(DATA, batch_size=4, drop_last=True, generator=generator),
        lambda _: DataLoader(DATA, batch_sampler=[[1, 2], [3]]),
        lambda _: DataLoader(DATA, batch_size=2, collate_fn=lambda samples: (samples[0][0],)),
        lambda _: DataLoader(Together(DATA.tensors[0]), batch_size=3),
    ],
    ids=["in order", "shuffled", "own generator", "whole", "batches", "collated", "together"],
)
def test_batches_and_random_numbers_are_those_of_torch(make_loader):
    assert random_numbers_after(begin_batches, make_loader) == random_numbers_after(
        iter, make_loader
    )


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(DATA, batch_size=None),
        DataLoader(Stream(), batch_size=2),
        type("Own", (DataLoader,), {})(DATA),
    ],
    ids=["no batches", "stream", "subclass"],
)
def test_any_other_loader_is_asked_itself(loader):
    assert type(begin_batches(loader)) is type(iter(loader))
    assert len(list(begin_batches(loader))) == len(list(loader))


def test_random_numbers_are_drawn_as_the_pass_begins():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    begin_batches(DataLoader(DATA, generator=generator))
    assert not torch.equal(generator.get_state(), before)


def test_a_profiler_sees_batches_as_torch_names_them():
    def names(begin):
        with torch.autograd.profiler.profile() as profile:
            list(begin(DataLoader(DATA, batch_size=3)))
        found = [event.name for event in profile.function_events]
        return {name for name in found if name.startswith("enumerate(DataLoader)")}

    assert names(begin_batches) == names(iter) != set()
