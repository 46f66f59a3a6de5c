"""Streams of the field's libraries, resumed exactly on any number of ranks and workers."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from stream_sources import NUM_SHARDS, open_stream, write

HERE = Path(__file__).parent
sys.path.append(str(HERE.parents[1] / "packages" / "mm-runner" / "tests"))

from streams import draw, feed_of  # noqa: E402

from mm_runner.data import DataPosition, announce_epoch  # noqa: E402

# The libraries warn of themselves.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = ["hf", "hf-map", "hf-buffer", "tars", "mds"]
RANKS = [(1, 2), (2, 1), (2, 3)]
NUM_POINTS, BATCH_SIZE = 50, 1
SIZE = 2 * NUM_POINTS * BATCH_SIZE + 7


@pytest.fixture(scope="module")
def streams(tmp_path_factory):
    """``streams(kind)`` writes the data once, and returns a function that opens them."""
    folders = {}

    def make(kind, size=SIZE, window=1):
        stem = kind.partition("-")[0]
        if (stem, size) not in folders:
            folders[stem, size] = tmp_path_factory.mktemp(stem)
            write(stem, folders[stem, size], size)
        folder = folders[stem, size]
        return (lambda: open_stream(kind, folder, size, window)), folder

    return make


def _stops(make, num_ranks, num_workers, epoch):
    """Return, after each number of batches, the samples drawn and the position."""
    start, drawn, positions = DataPosition(epoch, samples=0), [[] for _ in range(NUM_POINTS)], []
    for rank in range(num_ranks):
        feed = feed_of(make(), rank, num_ranks, num_workers, BATCH_SIZE)
        announce_epoch(feed.loader, epoch)
        for number, batch in enumerate(islice(feed.begin(start), NUM_POINTS)):
            drawn[number] += batch
            if rank == 0:
                state = json.loads(json.dumps(feed.position()._asdict()))
                positions.append(DataPosition(**state))
        feed.close()
    for number in range(1, NUM_POINTS):
        drawn[number] += drawn[number - 1]
    return list(zip(drawn, positions, strict=True))


@pytest.mark.parametrize("num_workers", [0, 2, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), RANKS)
def test_every_sample_comes_once_from_50_points(streams, kind, before, after, num_workers):
    make, _ = streams(kind)
    whole = sorted(draw(make, 1, 0, DataPosition(1, samples=0))[0])
    assert len(whole) == SIZE
    for first, position in _stops(make, before, num_workers, 1):
        there = feed_of(make(), 0, after, batch_size=BATCH_SIZE)
        start = there.rescaled(position, before, after)
        assert start.samples == len(first)
        rest, _ = draw(make, after, num_workers, start, batch_size=BATCH_SIZE)
        extra = Counter(first + rest) - Counter(whole)
        assert not Counter(whole) - Counter(first + rest), start
        assert sum(extra.values()) < after


def _launch(num_ranks, *args, kill_at=0):
    if num_ranks > 1:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={num_ranks}"]
    else:
        launch = []
    command = [sys.executable, *launch, str(HERE / "streamed_run.py"), *map(str, args)]
    done = subprocess.run(
        [*command, f"--kill_at={kill_at}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode == 0) is not bool(kill_at), done.stdout + done.stderr
    return done.stdout + done.stderr


def _steps(folder):
    """Return the samples of each step and rank, of the last time it was taken."""
    steps = {}
    for path in sorted(folder.glob("drawn_*.jsonl")):
        for line in path.read_text().splitlines():
            step = json.loads(line)
            steps[step["step"], path.stem] = step["drawn"]
    return steps


def _weights(folder):
    return torch.load(folder / "epoch_2.pth", weights_only=True)["state_dict"]


@pytest.mark.parametrize("kind", ["hf", "tars", "mds"])
@pytest.mark.parametrize("num_workers", [0, 2, 4])
def test_killed_ranks_end_with_the_weights_of_a_run_without_a_kill(
    streams, tmp_path, kind, num_workers
):
    _, data = streams(kind)
    options = (f"--size={SIZE}", f"--workers={num_workers}")
    _launch(2, kind, data, tmp_path / "whole", *options)
    _launch(2, kind, data, tmp_path / "parts", *options, kill_at=11)
    _launch(2, kind, data, tmp_path / "parts", *options, kill_at=40)
    log = _launch(2, kind, data, tmp_path / "parts", *options)
    assert "seeks: a resumed run continues within an epoch at once" in log
    assert _steps(tmp_path / "parts") == _steps(tmp_path / "whole")
    parts, whole = _weights(tmp_path / "parts"), _weights(tmp_path / "whole")
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


@pytest.mark.parametrize("kind", ["hf", "tars", "mds"])
def test_killed_ranks_are_followed_by_another_number_of_them(streams, tmp_path, kind):
    _, data = streams(kind)
    options = (f"--size={SIZE}", "--workers=2")
    _launch(1, kind, data, tmp_path, *options, kill_at=9)
    _launch(2, kind, data, tmp_path, *options, kill_at=15)
    _launch(1, kind, data, tmp_path, *options, kill_at=40)
    # The first pass: 9 steps of one rank, 6 of two, 25 of one, and what is left of two.
    _launch(2, kind, data, tmp_path, *options)
    num_before_last = 2 * 9 + 4 * 6 + 2 * 25
    last = -(-(SIZE - num_before_last) // 4)
    batches = [batch for (step, _), batch in _steps(tmp_path).items() if step < 40 + last]
    drawn = Counter(number for batch in batches for number in batch)
    assert set(drawn) == set(range(SIZE))
    assert sum(drawn.values()) <= SIZE + 1  # at most one is repeated, for the second rank


def test_a_shuffle_buffer_and_a_missing_state_are_announced(streams):
    assert "cannot seek, as its state is without the samples in the shuffle buffer" in (
        streams("hf-buffer")[0]().how_it_resumes()
    )
    for kind in ("hf", "hf-map", "tars", "mds"):
        assert "seeks: a resumed run continues" in streams(kind)[0]().how_it_resumes()


@pytest.mark.parametrize("kind", ["hf", "tars"])
def test_a_resumed_stream_reads_at_most_a_shard_again(streams, kind):
    make, _ = streams(kind, 1000)
    _, position = draw(make, 1, 0, DataPosition(0, samples=0), 300)
    dataset, reads = make(), []
    feed = feed_of(dataset)
    read = dataset._next
    with contextlib.suppress(StopIteration):
        dataset._next = lambda: reads.append(1) or read()
        next(feed.begin(position))
    assert len(reads) == 3 < 1000 / NUM_SHARDS
