"""Accelerate: its prepared model, optimizer and loader in a loop by hand."""

from __future__ import annotations

from accelerate import Accelerator

from .task import LOG_INTERVAL, build_loader, build_model, build_optimizer, compile_model

_PRECISIONS = {"bfloat16": "bf16", "float16": "fp16"}


def train(task, clock, directory):
    precision = _PRECISIONS.get(task.precision, "no")
    accelerator = Accelerator(cpu=task.device == "cpu", mixed_precision=precision)
    bare = build_model(task)
    optimizer = build_optimizer(bare)
    model, optimizer, loader = accelerator.prepare(
        compile_model(bare, task), optimizer, build_loader(task)
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
            clock.tick()
    return loss.item()
