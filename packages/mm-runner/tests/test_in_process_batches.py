"""Batches that the training process loads itself are those that torch's iterator gives."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, dataloader

from mm_runner.data._in_process import begin_batches

DATA = TensorDataset(torch.arange(10.0))


class Together(TensorDataset):
    """Is asked for all samples of a batch at once."""

    def __getitems__(self, indices):
        return [(-self.tensors[0][i],) for i in indices]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(3))


class Failing(TensorDataset):
    """Cannot give one sample."""

    def __init__(self, error):
        super().__init__(torch.arange(10.0))
        self.error = error

    def __getitem__(self, index):
        if index == 4:
            raise self.error
        return super().__getitem__(index)


def values_of(batch):
    return torch.as_tensor(batch[0]).tolist()


def random_numbers_after(begin, make_loader):
    """Go through a loader twice; return what came, and what was left of the random numbers."""
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(4)
    loader = make_loader(generator)
    came = [[values_of(batch) for batch in begin(loader)] for _ in range(2)]
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
    ids=["in order", "shuffled", "generator", "whole", "batches", "collated", "together"],
)
def test_batches_and_random_numbers_are_those_of_torch(make_loader):
    assert random_numbers_after(begin_batches, make_loader) == random_numbers_after(
        iter, make_loader
    )


def test_a_pass_goes_on_after_a_batch_that_failed():
    def values_around_the_error(begin):
        batches = begin(DataLoader(Failing(ValueError("unreadable")), batch_size=3))
        first = values_of(next(batches))
        with pytest.raises(ValueError, match="unreadable"):
            next(batches)
        return first, [values_of(batch) for batch in batches]

    assert values_around_the_error(begin_batches) == values_around_the_error(iter)


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


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (DataLoader, "__iter__"),
        (DataLoader, "_get_iterator"),
        (dataloader._BaseDataLoaderIter, "__next__"),
        (dataloader._SingleProcessDataLoaderIter, "_next_data"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_what_was_put_on_torchs_classes_is_called(monkeypatch, kind, name):
    own, called = getattr(kind, name), []

    def noting(self):
        called.append(name)
        return own(self)

    monkeypatch.setattr(kind, name, noting)
    assert len(list(begin_batches(DataLoader(DATA, batch_size=5)))) == 2
    assert called


def test_random_numbers_are_drawn_as_the_pass_begins():
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    begin_batches(DataLoader(DATA, generator=generator))
    assert not torch.equal(generator.get_state(), before)


def test_a_profiler_sees_what_torch_tells_it():
    def seen(begin):
        with torch.autograd.profiler.profile() as profile:
            list(begin(DataLoader(DATA, batch_size=3)))
        names = [event.name for event in profile.function_events]
        return [name for name in names if name.startswith("enumerate(DataLoader)")]

    assert seen(begin_batches) == seen(iter) != []
