"""A stream that is shared by all processes and workers, and resumed by any number of them."""

import json
import logging
from pathlib import Path

import pytest
from streams import Numbers, Seekable, as_blob, assert_each_once, draw, feed_of
from test_resume_midway import StopAfter, train_whole_and_in_parts
from test_resume_ranks import Drawn, _train
from torch.utils.data import DataLoader
from toy import NO_VALIDATION, Blobs

import mm_dist
from mm_runner.data import DataPosition, StreamDataset, announce_epoch
from mm_runner.errors import ConfigError

BEGIN = DataPosition(1, samples=0)


@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)])
@pytest.mark.parametrize("source", [Numbers, Seekable, lambda: list(range(40))])
@pytest.mark.parametrize("window", [1, 8])
def test_every_sample_comes_once_wherever_a_run_stops(before, after, source, window):
    for at in range(1, 40 // (3 * before) + 1):
        assert_each_once(lambda: StreamDataset(source(), shuffle_window=window), before, after, at)


@pytest.mark.parametrize(("before", "after", "window"), [(1, 2, 1), (2, 3, 8)])
def test_every_sample_comes_once_with_workers(before, after, window):
    def make():
        return StreamDataset(Seekable(), shuffle_window=window)

    for at in (2, 5):
        assert_each_once(make, before, after, at, num_workers=2)


def test_workers_draw_what_the_process_itself_would():
    make = lambda: StreamDataset(Seekable(), shuffle_window=5)  # noqa: E731
    assert draw(make, 2, 2, BEGIN)[0] == draw(make, 2, 0, BEGIN)[0]


def test_a_window_is_shuffled_differently_in_each_epoch():
    def drawn(epoch):
        dataset = StreamDataset(list(range(40)), shuffle_window=8)
        return draw(lambda: dataset, 1, 0, DataPosition(epoch, samples=0))[0]

    first, second = drawn(0), drawn(1)
    assert first != second
    assert [at // 8 for at in first] == [at // 8 for at in range(40)]
    assert sorted(first) == sorted(second) == list(range(40))


@pytest.mark.parametrize(("num_workers", "window"), [(0, 1), (0, 8), (2, 8)])
def test_a_resumed_run_takes_the_steps_of_one_that_was_not_stopped(
    make_runner, tmp_path, num_workers, window
):
    def arguments():
        dataset = {"type": "StreamDataset", "source": Seekable(), "shuffle_window": window}
        return {
            **NO_VALIDATION,
            "train_dataloader": {
                "dataset": {**dataset, "transform": as_blob},
                "batch_size": 4,
                "num_workers": num_workers,
                "collate_fn": "default_collate",
            },
        }

    _, part = train_whole_and_in_parts(make_runner, tmp_path, arguments, [3, 10, 13, None])
    assert "Seekable seeks: a resumed run continues within an epoch at once." in _log_of(part)


def test_a_source_with_a_state_reads_no_sample_again():
    _, position = draw(lambda: StreamDataset(Seekable(1000)), 2, 0, BEGIN, 150)
    assert position.samples == 900
    dataset = StreamDataset(Seekable(1000))
    feed = feed_of(dataset)
    announce_epoch(feed.loader, 1)
    batches = feed.begin(feed.rescaled(position, 2, 1))
    assert next(batches) == [(n + 7) % 1000 for n in (900, 901, 902)]
    # Two by the ranks: the first had read up to its own last sample only.
    assert dataset.source.num_read <= 3 + 2


def test_a_source_without_a_state_is_read_again_without_transform(caplog):
    caplog.set_level(logging.INFO)
    seen = []
    dataset = StreamDataset(Numbers(), transform=lambda sample: seen.append(sample) or sample)
    feed = feed_of(dataset, log=logging.getLogger("streams"))
    next(feed.begin(DataPosition(0, batch=10, samples=30)))
    assert (seen, dataset.source.num_read) == ([30, 31, 32], 33)
    assert "cannot seek, as it has no state_dict() and load_state_dict()" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": {"type": "DefaultSampler", "shuffle": True}}, "remove sampler"),
        ({"shuffle": True}, "remove sampler"),
        ({"num_batch_per_epoch": 2}, "a dataset with a length and indices"),
        ({"dataset": {"type": "StreamDataset", "source": 3}}, "an iterable is needed, got 3"),
        ({"dataset": {"type": "StreamDataset", "source": Numbers(), "length": 0}}, "length: an"),
        (
            {"dataset": {"type": "StreamDataset", "source": (n for n in "ab")}},
            "Give length, the number of samples",
        ),
    ],
)
def test_what_a_stream_cannot_be_given(make_runner, options, message):
    cfg = {"dataset": StreamDataset(Numbers()), "batch_size": 4, **options}
    with pytest.raises(ConfigError, match=message):
        make_runner(**NO_VALIDATION, train_dataloader=cfg).train()


def test_the_loader_of_a_stream_is_given_as_a_dict(make_runner):
    loader = DataLoader(StreamDataset(Numbers()), batch_size=4)
    with pytest.raises(ConfigError, match=r"^train_dataloader: give the loader of a StreamDataset"):
        make_runner(**NO_VALIDATION, train_dataloader=loader).train()


class OfEpochs(Seekable):
    """Another order in each epoch, which is a part of its state."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return ((number * (3 + 4 * self.epoch)) % 40 for number in super().__iter__())

    def state_dict(self):
        return {**super().state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.epoch = state["epoch"]


def test_a_source_whose_state_has_its_epoch_changes_its_order():
    passes = [
        draw(lambda: StreamDataset(OfEpochs()), 1, 0, DataPosition(e, samples=0)) for e in (0, 1)
    ]
    assert passes[0] != passes[1]
    for at in (2, 7):
        assert_each_once(lambda: StreamDataset(OfEpochs()), 1, 2, at)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stream_that_ends_before_its_length_says_so(num_workers):
    feed = feed_of(StreamDataset(Numbers(10), length=12), num_workers=num_workers)
    with pytest.raises(ConfigError, match="ended after 10 samples of an epoch, and its length is"):
        list(feed.begin(BEGIN))


class SplitsByItself(Seekable):
    """Blobs; with more than one process it would have to give each its share."""

    def __iter__(self):
        blobs = Blobs(40)
        return (blobs[number] for number in super().__iter__())


def _two_ranks(rank, folder):
    folder = Path(folder)
    cfg = {"train_cfg": {"max_epochs": 1}, "resume": True}
    drawn = Drawn()
    data = {"train_dataloader": _stream()}
    _train(folder / "shared", [drawn, StopAfter(8)], **cfg, **data)
    both = mm_dist.all_gather_object(drawn.samples)
    own = {"train_dataloader": {**_stream(), "dataset": SplitsByItself()}}
    runner = _train(folder / "own", [], **cfg, **own)
    if rank == 0:
        (folder / "drawn.json").write_text(json.dumps(both[0] + both[1]))
        assert (
            "pass 1 over the data starts again, as an iterable dataset splits its samples by "
            "itself (a StreamDataset would continue)"
        ) in _log_of(runner)
        assert runner.iter == 5 + 14


def _stream():
    dataset = StreamDataset(Seekable(40), transform=Blobs(40).__getitem__)
    return {"dataset": dataset, "batch_size": 3, "collate_fn": "default_collate"}


def _log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def test_real_ranks_draw_the_rest_each_sample_once(run_ranks, tmp_path):
    one = {"launcher": "none", "train_cfg": {"max_epochs": 1}}
    drawn = Drawn(), Drawn()
    data = {"train_dataloader": _stream()}
    _train(tmp_path / "shared", [drawn[0], StopAfter(5)], **one, **data)
    own = {"train_dataloader": {**_stream(), "dataset": SplitsByItself()}}
    _train(tmp_path / "own", [StopAfter(5)], **one, **own)
    run_ranks(_two_ranks, 2, str(tmp_path))
    _train(tmp_path / "shared", [drawn[1]], resume=True, **one, **data)
    by_two = json.loads((tmp_path / "drawn.json").read_text())
    assert [len(part) for part in (drawn[0].samples, by_two, drawn[1].samples)] == [15, 18, 7]
    every = drawn[0].samples + by_two + drawn[1].samples
    assert sorted(every) == sorted(Blobs(40).inputs[:, 0].tolist())
