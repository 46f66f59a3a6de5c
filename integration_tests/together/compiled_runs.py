"""Runs of two processes that differ in what is compiled, how it is wrapped, and whence it starts.

Each leaves its checkpoints in a folder named after it.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from mm_runner.model import BaseModel
from mm_runner.runner import Runner

BATCH = 8
# Older ones keep too little of what they compile.
KEEPS_CODE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
AMP = {
    "type": "AmpOptimWrapper",
    "dtype": "bfloat16",
    "fp32_modules": ["head"],
    "accumulative_counts": 2,
    "optimizer": {"type": "SGD", "lr": 0.05, "momentum": 0.9},
}
FLOAT32 = {
    "accumulative_counts": 2,
    "optimizer": {"type": "AdamW", "lr": 0.01},
    "clip_grad": {"max_norm": 1.0},
}
SHARDED = {"type": "MMFullyShardedDataParallel", "auto_wrap_policy": ["Block"]}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, inputs):
        return inputs + self.layers(self.norm(inputs))


class Net(BaseModel):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, inputs, labels, mode="tensor"):
        outputs = self.stem(inputs)
        for block in self.blocks:
            outputs = block(outputs)
        scores = self.head(outputs)
        if mode == "loss":
            assert scores.dtype == torch.float32  # the head is an island
            return {"loss": functional.cross_entropy(scores, labels)}
        return (scores, labels) if mode == "predict" else scores


def loader(size):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(size, 8, generator=generator)
    labels = torch.randint(4, (size,), generator=generator)
    return {
        "batch_size": BATCH,
        "dataset": TensorDataset(inputs, labels),
        "collate_fn": "default_collate",
    }


def run(name, compile_cfg, optim_wrapper, wrapper_cfg, load_from=None):
    runner = Runner(
        model=Net(),
        work_dir=name,
        train_dataloader=loader(4 * 2 * BATCH),
        train_cfg={"by_epoch": True, "max_epochs": 2},
        val_dataloader=loader(2 * BATCH),
        val_cfg={},
        val_evaluator={"type": "Accuracy"},
        optim_wrapper=optim_wrapper,
        load_from=load_from,
        resume=load_from is not None,
        randomness={"seed": 7},
        cfg={"compile": compile_cfg, "model_wrapper_cfg": wrapper_cfg},
    )
    assert runner.world_size == 2
    runner.train()
    handle = runner.compile_handle
    assert bool(compile_cfg) == bool(handle)
    if handle:
        assert all(region.is_compiled for region in handle.regions), handle.regions
        assert handle.report().graphs
        torch._dynamo.reset()


def main(kind):
    if kind == "parallel":
        options = (AMP, None)
        # What dynamo captures, run as it is; and real code.
        whole, regions = {"backend": "eager"}, {"regions": "auto", "cache": KEEPS_CODE}
    else:
        options = (FLOAT32, SHARDED)
        whole, regions = {"backend": "aot_eager"}, {"backend": "aot_eager", "regions": "auto"}
    run("plain", None, *options)
    run("whole", whole, *options)
    run("regions", regions, *options)
    run("to_plain", None, *options, load_from="regions/epoch_1.pth")
    run("to_regions", regions, *options, load_from="plain/epoch_1.pth")


if __name__ == "__main__":
    main(sys.argv[1])
