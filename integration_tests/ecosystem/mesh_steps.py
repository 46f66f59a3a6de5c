"""Steps of a transformer whose layers are split over processes, or of the same in one process.

Losses by step go to ``losses.json`` in the folder of the run, of one that resumes too.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import mm_dist
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel
from mm_runner.runner import Runner

BATCH_OF_ALL, WIDTH, NUM_TOKENS = 8, 8, 12
PLAN = {
    "embed": "rowwise",
    "layers.*.qkv.*": "colwise",
    "layers.*.out": "rowwise",
    "layers.*.up": "colwise",
    "layers.*.down": "rowwise",
    "head": "colwise_gather",
}


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        inputs = self.norm(hidden)
        heads = (one(inputs).unflatten(-1, (-1, 2)).transpose(1, 2) for one in self.qkv)
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return hidden + self.down(self.up(hidden).relu())


class Net(BaseModel):
    def __init__(self, dtype, dropout):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(NUM_TOKENS, WIDTH), nn.Linear(WIDTH, NUM_TOKENS)
        self.layers = nn.ModuleList(Layer(dropout) for _ in range(2))
        self.to(dtype)

    def forward(self, tokens, mode="tensor"):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        scores = self.head(hidden)
        if mode == "predict":
            return scores[:, -1], tokens[:, 0]
        labels = tokens.roll(1, dims=1)
        return {"loss": functional.cross_entropy(scores.double().flatten(0, 1), labels.flatten())}


class Note(Hook):
    """Notes the losses over all samples of a step, and the metrics."""

    def __init__(self, path):
        self.path = Path(path) / "losses.json"
        self.seen = json.loads(self.path.read_text()) if self.path.exists() else []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):  # noqa: ARG002
        loss = outputs["loss"].double()
        mm_dist.all_reduce(loss, "mean")
        self.seen.append(float(loss))

    def after_val_epoch(self, runner, metrics):  # noqa: ARG002
        self.seen.append(metrics["accuracy"])

    def after_train(self, runner):
        if runner.rank == 0:
            self.path.write_text(json.dumps(self.seen))


def main(name, options):
    data = options.get("data", 1)
    dtype = getattr(torch, options.get("dtype", "float64"))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(NUM_TOKENS, (BATCH_OF_ALL * 10, 4), generator=generator)
    wrapper = {
        "type": "MMFullyShardedDataParallel",
        "mesh": {"data": data, "tensor": options.get("tensor", 1)},
        "plan": PLAN,
        "auto_wrap_policy": ["Layer"],
    }
    loader = {"dataset": TensorDataset(tokens), "collate_fn": "default_collate"}
    runner = Runner(
        model=Net(dtype, options.get("dropout", 0.0)),
        work_dir=name,
        train_dataloader={**loader, "batch_size": BATCH_OF_ALL // data},
        # Samples do not divide evenly over processes or batches.
        val_dataloader={**loader, "dataset": TensorDataset(tokens[:13]), "batch_size": 2},
        val_evaluator={"type": "Accuracy"},
        optim_wrapper={
            "optimizer": {"type": "AdamW", "lr": 0.01},
            "clip_grad": {"max_norm": 0.5},
            "accumulative_counts": 2,
            **options.get("optim_wrapper", {}),
        },
        train_cfg={"by_epoch": True, "max_epochs": options.get("epochs", 2)},
        val_cfg={},
        load_from=options.get("load_from"),
        resume="load_from" in options,
        randomness={"seed": 7, "diff_rank_seed": "dropout" in options},
        custom_hooks=[Note(name), {"type": "EMAHook", "momentum": 0.1}],
        cfg={
            "model_wrapper_cfg": wrapper,
            **({"compile": options["compile"]} if "compile" in options else {}),
        },
    )
    model = runner.train()
    assert runner.num_data_ranks == data
    if runner.world_size > 1:
        weight = model.module.layers[0].up.weight
        assert weight.to_local().numel() == weight.numel() // runner.world_size
    if "dropout" in options:  # norms stay alike only if tensor ranks draw alike
        norm = model.module.layers[0].norm.weight.to_local()
        copies = mm_dist.all_gather(norm.detach())
        assert all(torch.equal(copies[index], copies[index ^ 1]) for index in range(4))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
