"""The loop that everybody writes first, logging included: what the others are compared with."""

from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from .task import BATCH_SIZE, LOG_INTERVAL, TinyClassifier, build_loader, build_optimizer


def train(num_steps, clock, directory):
    model = TinyClassifier(clock)
    loader = build_loader(num_steps)
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(loader.dataset, shuffle=False)
        loader = DataLoader(loader.dataset, BATCH_SIZE, sampler=sampler)
    optimizer = build_optimizer(model)
    with (directory / "log.txt").open("w") as log:
        for step, batch in enumerate(loader, start=1):
            loss = model(batch["inputs"], batch["labels"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % LOG_INTERVAL == 0:
                log.write(f"{step} {loss.item():.4f}\n")
    if dist.is_initialized():
        dist.destroy_process_group()
