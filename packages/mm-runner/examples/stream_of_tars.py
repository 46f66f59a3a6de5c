"""Train from a stream of tars, stop in the middle of an epoch, and resume at the next sample."""

import io
from pathlib import Path

import torch
from digits import DigitsResNet, digits
from webdataset import TarWriter

from mm_runner import Runner


def decode(sample: dict[str, bytes]) -> tuple[torch.Tensor, int]:
    """Return the image and the label of a sample of a tar."""
    image = torch.load(io.BytesIO(sample["image.pth"]), weights_only=True)
    return image, int(sample["cls"])


if __name__ == "__main__":
    folder, images = Path("work_dirs/stream_of_tars"), digits("train")
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(8):
        with TarWriter(str(folder / f"digits-{shard}.tar")) as tar:
            for index in range(shard, len(images), 8):
                image, label = images[index]
                tar.write({"__key__": f"{index:04}", "image.pth": image.clone(), "cls": int(label)})
    source = {"type": "TarStream", "urls": f"{folder}/digits-{{0..7}}.tar", "shuffle": True}
    options = {"length": len(images), "transform": decode, "shuffle_window": 256}
    stream = {"type": "StreamDataset", "source": source, **options}
    loader = {"dataset": stream, "batch_size": 32, "collate_fn": "default_collate"}
    for max_iters in (60, 130):  # an epoch has 40 steps
        Runner(
            model=DigitsResNet(),
            work_dir=str(folder),
            train_dataloader={**loader, "num_workers": 2},
            train_cfg={"by_epoch": False, "max_iters": max_iters},
            optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.002}},
            resume=max_iters > 60,
        ).train()
