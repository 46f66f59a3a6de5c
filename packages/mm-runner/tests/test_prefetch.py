"""The way of a batch to the device. Accelerators are stood in for, but where CUDA is there."""

import contextlib
from collections import OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from toy import NO_VALIDATION, loader_cfg

from mm_runner import ConfigError
from mm_runner.data import BatchFeed, DataPosition, DataSettings, build_dataloader, map_tensors
from mm_runner.model import BaseModel

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


class Pair(NamedTuple):
    left: object
    right: object


class StandIn:
    """An accelerator that computes nothing and notes what is asked of it, in order.

    Its tensors are meta tensors, which know a device other than the CPU, and no values.
    """

    def __init__(self):
        self.events = []
        self.main = self.Stream(name="main")
        self.now = self.main

    def Stream(self, device=None, name="copies"):  # noqa: N802 - torch's name
        stream = SimpleNamespace(name=name, device=device)
        stream.wait_stream = lambda other: self.events.append(f"{name} waits for {other.name}")
        return stream

    def current_stream(self, device):
        assert device == torch.device("meta")
        return self.now

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        yield
        self.now = before


@pytest.fixture
def stand_in(monkeypatch):
    device = StandIn()
    monkeypatch.setattr(torch, "meta", device, raising=False)
    to = torch.Tensor.to

    def noted_to(tensor, *args, **kwargs):
        if args == (torch.device("meta"),):
            how = "beside" if kwargs.get("non_blocking") else "waiting"
            device.events.append(f"copy {len(tensor)} on {device.now.name}, {how}")
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", noted_to)
    monkeypatch.setattr(
        torch.Tensor,
        "record_stream",
        lambda tensor, stream: device.events.append(f"keep {len(tensor)} for {stream.name}"),
    )
    return device


def feed_to(device, *, looks_ahead=False, **cfg):
    """Return a feed for batches of a loader that has workers, or none."""
    run = SimpleNamespace(device=torch.device(device), cfg=cfg, loader_generator=None)
    return BatchFeed(SimpleNamespace(num_workers=int(looks_ahead)), run)


def placed(feed, batches):
    return (batch for _, batch in feed.pairs(iter(batches)))


def drawn(sizes, events):
    for size in sizes:
        events.append(f"draw {size}")
        yield {"x": torch.ones(size)}


def test_stand_in_the_next_batch_is_copied_on_its_own_stream_before_the_present_is_handed_out(
    stand_in,
):
    feed = feed_to("meta", looks_ahead=True)
    for batch in placed(feed, drawn([1, 2], stand_in.events)):
        assert batch["x"].device.type == "meta"
        stand_in.events.append(f"compute {len(batch['x'])}")
    assert stand_in.events == [
        "draw 1",
        "copy 1 on copies, beside",
        "main waits for copies",  # only for the first: the second copy comes after
        "keep 1 for main",
        "draw 2",
        "copy 2 on copies, beside",
        "compute 1",
        "main waits for copies",
        "keep 2 for main",
        "compute 2",
    ]
    assert stand_in.now is stand_in.main


def test_stand_in_a_loader_that_cannot_be_drawn_ahead_is_not(stand_in):
    for batch in placed(feed_to("meta"), drawn([1, 2], stand_in.events)):
        stand_in.events.append(f"compute {len(batch['x'])}")
    order = [event for event in stand_in.events if event.startswith(("draw", "compute"))]
    assert order == ["draw 1", "compute 1", "draw 2", "compute 2"]
    assert "copy 2 on copies, beside" in stand_in.events


@pytest.mark.usefixtures("stand_in")
def test_stand_in_an_error_comes_with_its_batch_and_not_before():
    def breaks():
        yield {"x": torch.ones(1)}
        raise ValueError("sample 7 is damaged")

    batches = placed(feed_to("meta", looks_ahead=True), breaks())
    assert len(next(batches)["x"]) == 1
    with pytest.raises(ValueError, match="sample 7 is damaged"):
        next(batches)


@pytest.mark.usefixtures("stand_in")
def test_stand_in_metrics_and_hooks_of_an_evaluation_see_the_batch_on_the_host():
    batch = {"x": torch.ones(3), "name": "a"}
    ((host, there),) = feed_to("meta").pairs(iter([batch]))
    assert host is batch
    assert (there["x"].device.type, there["name"]) == ("meta", "a")


def test_stand_in_what_cannot_be_copied_so_is_left_to_the_model(stand_in):
    sparse = torch.eye(2).to_sparse()
    there = torch.ones(4, device="meta")
    batch = [torch.ones(2), sparse, there, torch.ones(0), {"text": "a"}, 5]
    (copied,) = placed(feed_to("meta"), [batch])
    assert copied[1] is sparse
    assert copied[2] is there
    assert copied[0].device.type == copied[3].device.type == "meta"
    assert "copy 2 on copies, beside" in stand_in.events


@pytest.mark.usefixtures("stand_in")
def test_stand_in_positions_do_not_count_what_was_only_prefetched():
    cfg = loader_cfg(num_workers=1, pin_memory=False)
    loader = build(cfg)
    run = {"device": torch.device("meta"), "seed": 0, "loader_generator": loader.generator}
    batches = BatchFeed(loader, SimpleNamespace(**run, cfg={}))
    passing = batches.begin(DataPosition(0, samples=0))
    for number in (1, 2, 3):
        next(passing)
        assert batches.position() == DataPosition(0, number, samples=4 * number, num_batches=6)
    (rest,) = [list(passing)]
    assert (len(rest), batches.batch) == (3, 6)


def test_on_the_cpu_batches_are_handed_on_as_they_are():
    batches = [{"x": torch.ones(2)}, object()]
    drawn = placed(feed_to("cpu", looks_ahead=True), batches)
    assert [a is b for a, b in zip(drawn, batches, strict=True)] == [True, True]


def test_any_nested_batch_is_mapped_and_keeps_its_kind():
    class Bag(dict):
        pass

    batch = {
        "pair": Pair(torch.ones(1), "text"),
        "list": [torch.ones(2), (torch.ones(3), None)],
        "default": defaultdict(list, {"x": torch.ones(4)}),
        "ordered": OrderedDict(b=torch.ones(5), a=1),
        "bag": Bag(x=torch.ones(6)),
    }
    mapped = map_tensors(batch, torch.neg)
    assert {key: type(value) for key, value in mapped.items()} == {
        key: type(value) for key, value in batch.items()
    }
    assert mapped["pair"].left.item() == -1
    assert mapped["list"][1][0].sum() == -3
    assert mapped["default"]["missing"] == []
    assert list(mapped["ordered"]) == ["b", "a"]
    assert batch["bag"]["x"].sum() == 6, "the batch itself was changed"


# CUDA itself, where there is one.


@needs_cuda
@pytest.mark.parametrize("looks_ahead", [True, False], ids=["ahead", "in-turn"])
def test_on_cuda_every_value_arrives_while_the_device_is_busy(looks_ahead):
    device = torch.device("cuda")
    heavy = torch.randn(2048, 2048, device=device)
    host = [{"x": torch.full((256, 1024), float(i)), "meta": i} for i in range(50)]
    sums = []
    for batch in placed(feed_to(device, looks_ahead=looks_ahead), host):
        heavy = torch.tanh(heavy @ heavy)  # queued: the copy runs beside it
        sums.append((batch["x"] + heavy[0, 0] * 0).sum())
        del batch
    assert torch.stack(sums).tolist() == [256 * 1024 * float(i) for i in range(50)]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_began_midway_gives_all_of_itself_to_others(num_workers):
    loader = build(loader_cfg(num_workers=num_workers, persistent_workers=False))
    run = {"device": torch.device("cpu"), "seed": 0, "loader_generator": loader.generator}
    batches = BatchFeed(loader, SimpleNamespace(**run, cfg={}))
    labels = [batch["labels"].tolist() for batch in batches.begin(DataPosition(0, samples=0))]
    rest = batches.begin(DataPosition(0, batch=4, samples=16, num_batches=6))
    assert [batch["labels"].tolist() for batch in rest] == labels[4:]
    assert [batch["labels"].tolist() for batch in loader] == labels


# The loader's defaults.


def build(cfg, device=None):
    generator = torch.Generator().manual_seed(0)
    settings = DataSettings(0, generator, device=device)
    return build_dataloader(cfg, settings, shuffle=False, where="train_dataloader")


def test_workers_stay_unless_told_otherwise():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(4))

    assert build(loader_cfg(num_workers=1)).persistent_workers
    assert not build(loader_cfg(num_workers=1, persistent_workers=False)).persistent_workers
    assert not build(loader_cfg()).persistent_workers
    # Its workers' random numbers begin with them.
    assert not build({"dataset": Stream(), "batch_size": 2, "num_workers": 1}).persistent_workers


@pytest.mark.usefixtures("stand_in")
def test_stand_in_memory_is_pinned_for_an_accelerator_unless_told_otherwise(monkeypatch):
    device = torch.device("meta")
    assert not build(loader_cfg(), torch.device("cpu")).pin_memory
    assert not build(loader_cfg(), torch.device("mps")).pin_memory or hasattr(torch.mps, "Stream")
    assert not build(loader_cfg(pin_memory=False), device).pin_memory
    monkeypatch.setattr(torch, "accelerator", object(), raising=False)
    assert build(loader_cfg(), device).pin_memory
    assert build(loader_cfg(), device).pin_memory_device == ""


# Channels last.


class Images(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"images": torch.full((3, 4, 4), float(index)), "labels": torch.tensor(index % 3)}


class Convolves(BaseModel):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.volume = nn.Parameter(torch.ones(1, 1, 1, 1, 1))  # five dimensions: left as they are
        self.seen = []

    def forward(self, images, labels, mode="tensor"):
        self.seen.append(images.is_contiguous(memory_format=torch.channels_last))
        scores = self.first(images * self.volume[0]).mean((2, 3))[:, :3]
        if mode == "loss":
            return {"loss": nn.functional.cross_entropy(scores, labels)}
        return scores, labels


def image_loader():
    return {"dataset": Images(), "batch_size": 4, "collate_fn": "default_collate"}


def test_channels_last_for_the_model_and_the_images_it_gets(make_runner):
    loader = image_loader()
    runner = make_runner(
        model=Convolves(),
        train_dataloader=loader,
        val_dataloader=loader,
        train_cfg={"by_epoch": True, "max_epochs": 1},
        cfg={"channels_last": True},
    )
    kernel = runner.model.first.weight
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    runner.train()
    assert runner.model.seen == [True] * 4
    assert "channels_last" in next(Path(runner.log_dir).glob("*.log")).read_text()


def test_channels_last_is_off_by_default_and_checked(make_runner):
    runner = make_runner(model=Convolves(), train_dataloader=image_loader(), **NO_VALIDATION)
    runner.train()
    assert not any(runner.model.seen)
    with pytest.raises(ConfigError, match=r"^channels_last: True or False is needed, got 'yes'"):
        make_runner(cfg={"channels_last": "yes"})
    with pytest.raises(ConfigError, match=r"device_prefetch: True or False"):
        make_runner(cfg={"device_prefetch": "yes"})
