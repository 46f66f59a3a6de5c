"""Print how long resuming takes after 10^3 and 10^6 drawn samples, and what peers do.

Run by hand: ``python stream_table.py``. Peers that are not installed are left out.
"""

import argparse
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import torch
from stream_sources import as_number, open_source, open_stream, write
from torch.utils.data import DataLoader

sys.path.append(str(Path(__file__).parents[2] / "packages" / "mm-runner" / "tests"))

from streams import feed_of

from mm_runner.data import DataPosition

BATCH_SIZE, SHARD_SIZE = 100, 10_000


def ours(kind, folder, size, drawn):
    """Return seconds to the batch after ``drawn`` samples, and whether it is the right one."""
    number = drawn // BATCH_SIZE
    before = feed_of(open_stream(kind, folder, size), batch_size=BATCH_SIZE)
    near = DataPosition(0, batch=number - 1, samples=drawn - BATCH_SIZE)
    batches = before.begin(near)
    next(batches)
    position, expected = before.position(), next(batches)
    began = time.perf_counter()
    got = next(feed_of(open_stream(kind, folder, size), batch_size=BATCH_SIZE).begin(position))
    return time.perf_counter() - began, got == expected


def _numbers(samples):
    return torch.tensor([as_number(sample) for sample in samples])


def _loader(kind, folder):
    source = open_source(kind, folder)
    if kind == "tars":  # not our reader, but webdataset's own
        from webdataset import WebDataset  # noqa: PLC0415

        source = WebDataset(source.urls, shardshuffle=False)
    return DataLoader(source, batch_size=BATCH_SIZE, collate_fn=_numbers)


def accelerate(kind, folder, _size, drawn):
    """``skip_first_batches``, Accelerate's way for loaders without a state."""
    from accelerate import Accelerator, skip_first_batches  # noqa: PLC0415

    number = drawn // BATCH_SIZE
    expected = next(islice(_loader(kind, folder), number, None))
    began = time.perf_counter()
    loader = Accelerator(cpu=True).prepare(_loader(kind, folder))
    got = next(iter(skip_first_batches(loader, number)))
    return time.perf_counter() - began, torch.equal(got, expected)


def lightning(kind, folder, _size, drawn):
    """Lightning's Trainer, with a loader that has no state: killed, and resumed in an epoch."""
    from pytorch_lightning import LightningModule, Trainer  # noqa: PLC0415
    from pytorch_lightning.callbacks import ModelCheckpoint  # noqa: PLC0415

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layer, self.seen, self.began = torch.nn.Linear(1, 1), [], None

        def training_step(self, batch, _index):
            self.began = self.began or time.perf_counter()
            self.seen.append(batch)
            return self.layer(torch.zeros(1, 1)).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.0)

    number = drawn // BATCH_SIZE
    options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False}
    options |= {"enable_model_summary": False, "max_epochs": 1}
    saver = ModelCheckpoint(folder, f"light-{kind}-{drawn}", every_n_train_steps=number)
    Trainer(**options, limit_train_batches=number, callbacks=[saver]).fit(
        Model(), _loader(kind, folder)
    )
    expected = next(islice(_loader(kind, folder), number, None))
    model, began = Model(), time.perf_counter()
    Trainer(**options, max_steps=number + 1, enable_checkpointing=False).fit(
        model, _loader(kind, folder), ckpt_path=saver.best_model_path
    )
    is_right = bool(model.seen) and torch.equal(model.seen[0], expected)
    return (model.began or time.perf_counter()) - began, is_right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drawn", type=int, nargs="+", default=[1_000, 1_000_000])
    drawn = parser.parse_args().drawn
    size = max(drawn) + 10 * BATCH_SIZE
    print("| source | resumed by | samples drawn | seconds to the next batch | it is |")  # noqa: T201
    print("| --- | --- | ---: | ---: | --- |")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("hf", "tars", "mds"):
            write(kind, Path(folder, kind), size, -(-size // SHARD_SIZE))
            for resume in (ours, accelerate, lightning):
                if kind == "mds" and resume is not ours:
                    continue  # the order of their samples is that of Mosaic's own dataset
                for count in drawn:
                    try:
                        seconds, is_right = resume(kind, Path(folder, kind), size, count)
                    except ImportError:
                        break
                    text = "the next" if is_right else "another"
                    name = "mm-runner" if resume is ours else resume.__name__
                    print(f"| {kind} | {name} | {count:,} | {seconds:.2f} | {text} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
