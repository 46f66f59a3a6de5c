"""Lightning Fabric: its wrapped model, optimizer and loader in a loop by hand."""

from __future__ import annotations

import os

from lightning_fabric import Fabric

from .task import LOG_INTERVAL, TinyClassifier, build_loader, build_optimizer


def train(num_steps, clock, directory):
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    fabric.launch()
    model = TinyClassifier(clock)
    model, optimizer = fabric.setup(model, build_optimizer(model))
    loader = fabric.setup_dataloaders(build_loader(num_steps))
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            loss = model(batch["inputs"], batch["labels"])
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
