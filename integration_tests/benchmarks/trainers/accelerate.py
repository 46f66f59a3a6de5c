"""Accelerate: its prepared model, optimizer and loader in a loop by hand."""

from __future__ import annotations

from accelerate import Accelerator

from .task import LOG_INTERVAL, TinyClassifier, build_loader, build_optimizer


def train(num_steps, clock, directory):
    accelerator = Accelerator(cpu=True)
    model = TinyClassifier(clock)
    model, optimizer, loader = accelerator.prepare(
        model, build_optimizer(model), build_loader(num_steps)
    )
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            with accelerator.accumulate(model):
                loss = model(batch["inputs"], batch["labels"])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
