"""(f) What a step of data parallelism costs over torch's DistributedDataParallel by hand.

Two gloo ranks on this machine with a thread each train the same MLP, whose step takes about two
milliseconds where nothing else runs. Systems take turns of 15 steps in one pair of processes, and
end with the same weights. The bytes are those that the kernel counts for the ranks' connections,
with one micro-batch and with four in an optimizer step.
"""

import contextlib

import two_ranks
from torch.nn.parallel import DistributedDataParallel

TITLE = "Data parallel"
BASE = "torch_ddp"
AIM = "mm_ddp adds at most 1 % of the time, and no bytes"
SYSTEMS = {
    BASE: "torch",
    "mm_ddp": "mm-dist",
    "lightning_fabric": "lightning-fabric",
    "accelerate": "accelerate",
}
ROUNDS, QUICK_ROUNDS, TOGETHER = 7, 3, True
QUICK_SYSTEMS = (BASE, "mm_ddp")


def measure(systems, quick, folder):
    return two_ranks.measure(build, sorted(systems, key=lambda x: x != BASE), quick, folder)


def build(system, accumulation):
    model = two_ranks.Model()
    return _BUILDERS[system](model, accumulation), lambda: list(model.parameters())


def by_hand(model, accumulation):
    wrapper = DistributedDataParallel(model)
    optimizer = two_ranks.build_optimizer(wrapper)

    def backward(batch):
        (wrapper(**batch)["loss"] / accumulation).backward()

    def step(batches):
        with wrapper.no_sync() if accumulation > 1 else contextlib.nullcontext():
            for batch in batches[:-1]:
                backward(batch)
        backward(batches[-1])
        optimizer.step()
        optimizer.zero_grad()

    return step


def mm_ddp(model, accumulation):
    from mm_amp import OptimWrapper  # noqa: PLC0415 (of a part only what is measured)
    from mm_dist import MMDistributedDataParallel  # noqa: PLC0415

    wrapper = MMDistributedDataParallel(model)
    optimizer = OptimWrapper(two_ranks.build_optimizer(wrapper), accumulation)

    def step(batches):
        for batch in batches:
            wrapper.train_step(batch, optimizer)

    return step


def lightning_fabric(model, accumulation):
    from lightning_fabric import Fabric  # noqa: PLC0415

    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=2)
    fabric.launch()
    wrapper, optimizer = fabric.setup(model, two_ranks.build_optimizer(model))

    def step(batches):
        for index, batch in enumerate(batches, start=1):
            with fabric.no_backward_sync(wrapper, enabled=index < accumulation):
                fabric.backward(wrapper(**batch)["loss"] / accumulation)
        optimizer.step()
        optimizer.zero_grad()

    return step


def accelerate(model, accumulation):
    from accelerate import Accelerator  # noqa: PLC0415

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    wrapper, optimizer = accelerator.prepare(model, two_ranks.build_optimizer(model))

    def step(batches):
        for batch in batches:
            with accelerator.accumulate(wrapper):
                accelerator.backward(wrapper(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()

    return step


_BUILDERS = {
    BASE: by_hand,
    "mm_ddp": mm_ddp,
    "lightning_fabric": lightning_fabric,
    "accelerate": accelerate,
}
