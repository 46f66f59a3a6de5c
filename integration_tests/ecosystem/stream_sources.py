"""Small streams of numbers in the formats of the field's libraries."""

import copy
import json
from functools import cache

from mm_runner.data import MDSStream, StreamDataset, TarStream

NUM_SHARDS = 4


def write(kind, folder, size, num_shards=NUM_SHARDS):
    """Write the numbers below ``size`` in shards, as ``kind`` of :func:`open_stream`."""
    folder.mkdir(parents=True, exist_ok=True)
    step = -(-size // num_shards)
    shards = [range(begin, min(begin + step, size)) for begin in range(0, size, step)]
    if kind == "tars":
        from webdataset import TarWriter  # noqa: PLC0415

        for index, shard in enumerate(shards):
            with TarWriter(str(folder / f"{index:04}.tar")) as tar:
                for number in shard:
                    tar.write({"__key__": f"{number:08d}", "cls": str(number).encode()})
    elif kind == "mds":
        from streaming.base import MDSWriter  # noqa: PLC0415

        with MDSWriter(
            out=str(folder / "remote"), columns={"n": "int"}, size_limit=12 * step
        ) as out:
            for number in range(size):
                out.write({"n": number})
    else:
        for index, shard in enumerate(shards):
            lines = "".join(json.dumps({"n": number}) + "\n" for number in shard)
            (folder / f"{index:04}.jsonl").write_text(lines)


@cache
def _hugging_face(folder):
    from datasets import load_dataset  # noqa: PLC0415

    files = sorted(map(str, folder.glob("*.jsonl")))
    cached = str(folder / "cache")
    return load_dataset("json", data_files=files, split="train", streaming=True, cache_dir=cached)


def _doubled(batch):
    return {"n": [n for n in batch["n"] for _ in range(2)]}


def open_source(kind, folder):
    if kind == "tars":
        return TarStream(sorted(map(str, folder.glob("*.tar"))), shuffle=True)
    if kind == "mds":
        return MDSStream(str(folder / "local"), str(folder / "remote"), shuffle=True)
    stream = copy.deepcopy(_hugging_face(folder))  # as a new process has it
    if kind == "hf-buffer":
        return stream.shuffle(seed=0, buffer_size=8)
    if kind == "hf-map":  # of each number two, and the odd ones left out: as many as before
        return stream.map(_doubled, batched=True, batch_size=5).filter(lambda x: x["n"] % 2 == 0)
    return stream


def as_number(sample):
    return int(sample["cls" if "cls" in sample else "n"])


def open_stream(kind, folder, size, window=1):
    """Return the stream of ``kind``: hf, hf-map, hf-buffer, tars, mds."""
    source = open_source(kind, folder)
    return StreamDataset(source, size, transform=as_number, shuffle_window=window)
