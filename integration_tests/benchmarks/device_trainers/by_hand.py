"""The loop that an expert tunes by hand: what the others are compared with."""

from __future__ import annotations

import itertools

import torch

from .task import LOG_INTERVAL, build_loader, build_model, build_optimizer, compile_model


def prefetch(loader, device):
    """Yield batches on the device; each is copied while the one before it is computed."""
    if device.type == "cpu":
        yield from loader
        return
    stream, upcoming = torch.cuda.Stream(), None
    for batch in itertools.chain(loader, [None]):
        ready, upcoming = upcoming, None
        if ready is not None:
            torch.cuda.current_stream().wait_stream(stream)
            for tensor in ready.values():
                tensor.record_stream(torch.cuda.current_stream())
        if batch is not None:
            with torch.cuda.stream(stream):
                upcoming = {k: v.to(device, non_blocking=True) for k, v in batch.items()}
        if ready is not None:
            yield ready


def train(task, clock, directory):
    device = torch.device(task.device)
    bare = build_model(task).to(device)
    optimizer = build_optimizer(bare)
    model = compile_model(bare, task)
    dtype = getattr(torch, task.precision) if task.is_mixed else None
    scaler = torch.amp.GradScaler(task.device, enabled=task.precision == "float16")
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(prefetch(build_loader(task), device), start=1):
            with torch.autocast(task.device, dtype, enabled=task.is_mixed):
                loss = model(batch["inputs"], batch["labels"])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
            clock.tick()
    return loss.item()
