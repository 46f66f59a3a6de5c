"""(f) What a step of sharded data parallelism costs over torch's ``fully_shard`` by hand.

As the part on data parallelism. The parameters of each of two blocks are gathered at once, and
those of the rest; torch's own work for that makes the step several times as long.
"""

import two_ranks
from torch.distributed.fsdp import fully_shard

TITLE = "Sharded"
BASE = "fully_shard"
AIM = "mm_fsdp adds at most 1 % of the time, and no bytes"
SYSTEMS = {BASE: "torch", "mm_fsdp": "mm-dist"}
ROUNDS, QUICK_ROUNDS, TOGETHER = 7, 0, True


def measure(systems, quick, folder):
    return two_ranks.measure(build, sorted(systems, key=lambda x: x != BASE), quick, folder)


def build(system, accumulation):
    model = two_ranks.Model()
    step = (by_hand if system == BASE else mm_fsdp)(model, accumulation)
    return step, lambda: [parameter.full_tensor() for parameter in model.parameters()]


def by_hand(model, accumulation):
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = two_ranks.build_optimizer(model)

    def step(batches):
        for index, batch in enumerate(batches, start=1):
            if accumulation > 1:
                model.set_requires_gradient_sync(index == accumulation)
            (model(**batch)["loss"] / accumulation).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mm_fsdp(model, accumulation):
    from mm_amp import OptimWrapper  # noqa: PLC0415 (of a part only what is measured)
    from mm_dist import MMFullyShardedDataParallel  # noqa: PLC0415

    wrapper = MMFullyShardedDataParallel(model, auto_wrap_policy=r"blocks.?")
    optimizer = OptimWrapper(two_ranks.build_optimizer(wrapper), accumulation)

    def step(batches):
        for batch in batches:
            wrapper.train_step(batch, optimizer)

    return step
