import random
import signal
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)
from toy import Blobs, loader_cfg

from mm_runner import ComponentNotFoundError, ConfigError
from mm_runner.data import DataSettings, DefaultSampler, build_dataloader, pseudo_collate
from mm_runner.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS


class Pair(NamedTuple):
    left: Any
    right: Any


def build(cfg, *, shuffle=False, seed=0, rank=0, world_size=1):
    settings = DataSettings(seed, torch.Generator().manual_seed(seed), rank, world_size)
    return build_dataloader(cfg, settings, shuffle=shuffle, where="train_dataloader")


def labels(loader):
    return [batch["labels"].tolist() for batch in loader]


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        ([1, 2], [1, 2]),
        ([(1, "a"), (2, "b")], ([1, 2], ["a", "b"])),
        ([[1, 2], [3, 4]], [[1, 3], [2, 4]]),
        ([Pair(1, 2), Pair(3, 4)], Pair([1, 3], [2, 4])),
        ([{"x": 1, "y": {"z": 2}}, {"x": 3, "y": {"z": 4}}], {"x": [1, 3], "y": {"z": [2, 4]}}),
    ],
    ids=["values", "tuples", "lists", "named-tuples", "dicts"],
)
def test_pseudo_collate_regroups_field_by_field(samples, batch):
    assert pseudo_collate(samples) == batch
    assert type(pseudo_collate(samples)) is type(batch)


def test_a_ready_loader_is_returned_as_it_is():
    loader = DataLoader(Blobs(4))
    assert build(loader) is loader


def test_batches_come_in_order_unless_shuffled():
    assert labels(build(loader_cfg(size=5, batch_size=2))) == [[0, 1], [2, 0], [1]]
    cfg = loader_cfg(size=24, batch_size=24)
    assert labels(build(cfg, shuffle=True)) != labels(build(cfg))
    assert labels(build({**cfg, "shuffle": True})) != labels(build(cfg))
    assert labels(build({**cfg, "shuffle": False}, shuffle=True)) == labels(build(cfg))


def test_the_config_is_left_as_it_was():
    cfg = loader_cfg(sampler={"type": "DefaultSampler", "shuffle": True})
    before = dict(cfg)
    build(cfg)
    assert cfg == before


def test_starting_an_epoch_draws_no_global_random_number():
    loader = build(loader_cfg(), shuffle=True)
    before = torch.get_rng_state()
    labels(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_pseudo_collate_is_the_default():
    batch = next(iter(build({"dataset": Blobs(4), "batch_size": 2})))
    assert [tensor.shape for tensor in batch["inputs"]] == [(4,), (4,)]


def collate_scaled(samples, factor):
    return factor * len(samples)


@pytest.mark.parametrize(
    "collate_fn",
    [
        f"{__name__}:collate_scaled",
        {"type": collate_scaled, "factor": 3},
        {"type": "collate_scaled", "factor": 3},
    ],
    ids=["path", "function", "registered"],
)
def test_collate_fn_may_be_a_name_a_config_or_a_function(monkeypatch, collate_fn):
    monkeypatch.setitem(FUNCTIONS._registered, "collate_scaled", collate_scaled)
    if isinstance(collate_fn, str):
        collate_fn = {"type": collate_fn, "factor": 3}
    cfg = {"dataset": Blobs(4), "batch_size": 2, "collate_fn": collate_fn}
    assert list(build(cfg)) == [6, 6]
    assert list(build({**cfg, "collate_fn": len})) == [2, 2]


def test_num_batch_per_epoch_shortens_the_epoch():
    assert labels(build(loader_cfg(batch_size=2, num_batch_per_epoch=2))) == [[0, 1], [2, 0]]
    assert len(build(loader_cfg(size=4, batch_size=2, num_batch_per_epoch=9))) == 2


def test_a_shortened_dataset_has_the_metainfo_of_the_whole():
    dataset = Blobs(24)
    dataset.metainfo = {"classes": ("a", "b", "c")}
    loader = build(loader_cfg(dataset=dataset, batch_size=2, num_batch_per_epoch=2, num_workers=1))
    assert loader.dataset.metainfo == dataset.metainfo
    assert labels(loader) == [[0, 1], [2, 0]]


def test_num_batch_per_epoch_counts_the_batches_of_one_process():
    loader = build(loader_cfg(size=20, batch_size=2, num_batch_per_epoch=2), world_size=3)
    assert len(loader.dataset) == 2 * 2 * 3


def test_collate_fn_none_is_torchs_own():
    assert build(loader_cfg(collate_fn=None)).collate_fn is default_collate


def test_a_ready_loader_is_dealt_out_as_it_stands():
    dataset = loader_cfg(size=9)["dataset"]
    ready = DataLoader(dataset, batch_size=2, shuffle=True, drop_last=True)
    assert build(ready) is ready
    dealt = build(ready, world_size=2)
    assert isinstance(dealt.sampler, DefaultSampler)
    assert (dealt.sampler.shuffle, dealt.batch_size, dealt.drop_last) == (True, 2, True)
    assert dealt.collate_fn is ready.collate_fn


def test_a_ready_loader_of_batches_is_dealt_out_in_batches_of_that_size():
    dataset = loader_cfg(size=9)["dataset"]
    batches = BatchSampler(RandomSampler(dataset), 4, drop_last=True)
    dealt = build(DataLoader(dataset, batch_sampler=batches), world_size=2)
    assert (dealt.sampler.shuffle, dealt.batch_size, dealt.drop_last) == (True, 4, True)
    own = BatchSampler(range(8), 4, drop_last=True)
    with pytest.raises(
        ConfigError, match=r"train_dataloader \(DataLoader\): with range all processes"
    ):
        build(DataLoader(dataset, batch_sampler=own), world_size=2)


class Doubling(DataLoader):
    """Draws in a way of its own, which one made anew would not."""

    def __iter__(self):
        return (2 * batch for batch in super().__iter__())


def test_a_ready_loader_that_cannot_be_dealt_out_is_refused():
    dataset = loader_cfg(size=9)["dataset"]
    ready = DataLoader(dataset, sampler=SubsetRandomSampler([1, 2]))
    with pytest.raises(ConfigError, match=r"train_dataloader.*SubsetRandomSampler.*set_epoch"):
        build(ready, world_size=2)
    with pytest.raises(
        ConfigError, match=r"\(Doubling\): with SequentialSampler .* the same samples"
    ):
        build(Doubling(dataset), world_size=2)
    assert type(build(Doubling(dataset))) is Doubling
    by_itself = DataLoader(dataset, sampler=DistributedSampler(dataset, 2, 0))
    assert build(by_itself, world_size=2) is by_itself


def test_a_sampler_that_every_rank_would_see_alike_is_refused():
    for sampler in (RandomSampler(range(24)), WeightedRandomSampler([1.0] * 24, 24)):
        assert len(build(loader_cfg(sampler=sampler))) == 6
        with pytest.raises(
            ConfigError, match=r"sampler: with (Weighted)?RandomSampler .* the same sam"
        ):
            build(loader_cfg(sampler=sampler), world_size=2)
    of_batches = {
        "dataset": Blobs(24),
        "batch_sampler": BatchSampler(range(24), 4, drop_last=False),
    }
    assert len(build(of_batches, world_size=2)) == 6  # maybe dealt by the user
    own = WeightedRandomSampler([1.0] * 24, 24, generator=torch.Generator())
    assert len(build(loader_cfg(sampler=own), world_size=2)) == 6


def test_num_batch_per_epoch_needs_a_batch_size_and_a_length():
    cfg = loader_cfg(num_batch_per_epoch=2, batch_sampler={"type": BatchSampler})
    del cfg["batch_size"]
    with pytest.raises(ConfigError, match=r"\.num_batch_per_epoch.* got None and Blobs"):
        build(cfg)


def test_an_iterable_dataset_may_give_whole_batches_to_train_on():
    batches = [{"inputs": torch.rand(size, 2)} for size in (3, 1)]

    class Batches(IterableDataset):
        def __iter__(self):
            return iter(batches)

    cfg = {"dataset": Batches(), "batch_size": None}
    pairs = zip(build(cfg), batches, strict=True)
    assert all(one["inputs"] is two["inputs"] for one, two in pairs)
    with pytest.raises(ConfigError, match=r"^train_dataloader\.batch_size: .*got Blobs"):
        build(loader_cfg(batch_size=None))


def test_a_dataset_config_is_built_and_asked_to_read_its_files(monkeypatch):
    class Lazy(Blobs):
        is_read = False

        def full_init(self):
            self.is_read = True

    monkeypatch.setitem(DATASETS._registered, "Lazy", Lazy)
    loader = build(loader_cfg(dataset={"type": "Lazy", "size": 3}))
    assert len(loader.dataset) == 3
    assert loader.dataset.is_read


def test_a_batch_sampler_config_gets_the_sampler_and_the_batch_size(monkeypatch):
    monkeypatch.setitem(DATA_SAMPLERS._registered, "BatchSampler", BatchSampler)
    cfg = loader_cfg(
        size=5, batch_size=2, batch_sampler={"type": "BatchSampler", "drop_last": True}
    )
    loader = build(cfg)
    assert labels(loader) == [[0, 1], [2, 0]]
    assert isinstance(loader.batch_sampler.sampler, DefaultSampler)


class RandomNumbers(torch.utils.data.Dataset):
    """Gives what the worker's generators give."""

    def __init__(self, size=4):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        numpy = sys.modules.get("numpy")
        drawn = numpy.random.randint(2**30) if numpy else 0
        return f"{torch.randint(2**60, ()).item()} {random.random()} {drawn}"  # noqa: S311


def test_workers_of_different_ranks_draw_different_numbers():
    cfg = {"dataset": RandomNumbers(), "batch_size": 1, "num_workers": 2}
    draws = [tuple(batch[0] for batch in build(cfg, rank=rank)) for rank in (0, 1)]
    assert len({*draws[0], *draws[1]}) == 8
    assert draws[0] == tuple(batch[0] for batch in build(cfg, rank=0))


def test_workers_draw_by_batch_however_many_they_are_and_whatever_they_were_seeded_with():
    cfg = {"dataset": RandomNumbers(size=6), "batch_size": 2}
    one, two = (list(build({**cfg, "num_workers": number})) for number in (1, 2))
    assert one == two
    own = {"type": _seed_alike, "seed": 5}
    assert list(build({**cfg, "num_workers": 2, "worker_init_fn": own})) == one
    assert list(build({**cfg, "num_workers": 2}, seed=1)) != one
    loader = build({**cfg, "num_workers": 2, "persistent_workers": True})
    epochs = []
    for epoch in (0, 1, 0):
        loader.batch_sampler.seek(epoch)
        epochs.append(list(loader))
    assert epochs[0] == epochs[2] == one
    assert epochs[1] != one


def _seed_alike(worker_id, seed):  # noqa: ARG001
    torch.manual_seed(seed)


_tag = None


def _set_tag(worker_id, text):
    global _tag  # noqa: PLW0603 - that of the worker's process
    _tag = f"{text}{worker_id}"


class StopSignals(RandomNumbers):
    def __getitem__(self, index):
        return signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, _tag


def test_workers_with_a_worker_init_fn_of_ones_own_leave_signals_to_the_run_too():
    cfg = {"dataset": StopSignals(), "batch_size": 2, "num_workers": 2}
    own = {"worker_init_fn": {"type": _set_tag, "text": "worker"}}
    _, second = build({**cfg, **own, "disable_subprocess_warning": True})
    assert second == ([True] * 2, ["worker1"] * 2)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"batchsize": 4},
            ConfigError,
            r"^train_dataloader\.batchsize: unknown argument of DataLoader.*mean 'batch_size'",
        ),
        ({"collate_fn": "default_colate"}, ComponentNotFoundError, r"mean 'default_collate'"),
        (
            {"sampler": {"type": "DefaultSampler", "shufle": True}},
            ConfigError,
            r"^train_dataloader\.sampler\.shufle: unknown argument.*'shuffle'",
        ),
        (
            {"dataset": {"type": "Blobs", "siez": 3}},
            ConfigError,
            r"^train_dataloader\.dataset\.siez: unknown argument of Blobs.*'size'",
        ),
    ],
    ids=["unknown-key", "collate-name", "sampler-argument", "dataset-argument"],
)
def test_wrong_keys_are_named_by_their_path(monkeypatch, changes, error, message):
    monkeypatch.setitem(DATASETS._registered, "Blobs", Blobs)
    with pytest.raises(error, match=message):
        build({**loader_cfg(), **changes})
