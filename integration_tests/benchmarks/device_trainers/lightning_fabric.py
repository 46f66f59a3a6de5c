"""Lightning Fabric: its wrapped model, optimizer and loader in a loop by hand."""

from __future__ import annotations

from lightning_fabric import Fabric

from .task import LOG_INTERVAL, build_loader, build_model, build_optimizer, compile_model

_PRECISIONS = {"bfloat16": "bf16-mixed", "float16": "16-mixed"}


def train(task, clock, directory):
    precision = _PRECISIONS.get(task.precision, "32-true")
    fabric = Fabric(accelerator=task.device, devices=1, precision=precision)
    bare = build_model(task)
    optimizer = build_optimizer(bare)
    model, optimizer = fabric.setup(compile_model(bare, task), optimizer)
    loader = fabric.setup_dataloaders(build_loader(task))
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            loss = model(batch["inputs"], batch["labels"])
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
            clock.tick()
    return loss.item()
