"""The loop that everybody writes first, logging included: what the others are compared with."""

from .task import LOG_INTERVAL, TinyClassifier, build_loader, build_optimizer


def train(num_steps, clock, directory):
    model = TinyClassifier(clock)
    optimizer = build_optimizer(model)
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(build_loader(num_steps), start=1):
            loss = model(batch["inputs"], batch["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
