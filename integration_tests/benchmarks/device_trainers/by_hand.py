"""The loop that everybody writes first: what the others are compared with."""

from __future__ import annotations

import torch

from .task import LOG_INTERVAL, build_loader, build_model, build_optimizer


def train(task, clock, directory):
    device = torch.device(task.device)
    bare = build_model(task).to(device)
    optimizer = build_optimizer(bare)
    model = torch.compile(bare) if task.compiled else bare
    dtype = getattr(torch, task.precision)
    scales = task.precision == "float16"
    scaler = torch.amp.GradScaler(task.device, enabled=scales)
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(build_loader(task), start=1):
            inputs = batch["inputs"].to(device, non_blocking=True)
            labels = batch["labels"].to(device, non_blocking=True)
            with torch.autocast(task.device, dtype, enabled=task.precision != "float32"):
                loss = model(inputs, labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
            clock.tick()
