"""What one of two ranks on NPUs does; started by torchrun, srun or mpirun, or as if by them.

Run: ``python ranks.py FOLDER``; each rank writes ``FOLDER/<rank>.json``.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch_npu._calls import RECORDED

import mm_dist
import mm_npu


def describe_start(info):
    return {
        "launcher": info.launcher,
        "local_rank": info.local_rank,
        "backend": info.backend,
        "device": str(info.device),
        "set_device": [index for name, index in RECORDED if name == "set_device"],
        "current": torch.npu.current_device(),
        "torch": dist.get_backend(),
    }


def collectives(info):
    """Run each collective of mm-dist, on tensors of the NPU, and what it takes besides."""
    number = torch.tensor([1.0 + info.rank], device=info.device)
    reduced, sent, flags = number.clone(), number.clone(), torch.tensor([info.rank == 0])
    mm_dist.all_reduce(reduced, "mean")
    mm_dist.broadcast(sent, src=1)
    mm_dist.all_reduce(flags, "max")  # a bool on the CPU, though hccl takes neither
    losses = {"loss": number.clone(), "big": number.double().cpu()}
    mm_dist.all_reduce_dict(losses, "sum")
    gathered = mm_dist.all_gather(number)
    objects = mm_dist.all_gather_object({"rank": info.rank})
    assert all(one.device == info.device for one in (reduced, sent, *gathered))
    return {
        "all_reduce": reduced.tolist(),
        "broadcast": sent.tolist(),
        "flags": flags.tolist(),
        "dict": [float(losses["loss"]), float(losses["big"])],
        "all_gather": [one.tolist() for one in gathered],
        "gather": [one.tolist() for one in mm_dist.gather(number) or []],
        "objects": objects,
        "seeds": len(set(mm_dist.all_gather_object(mm_dist.sync_random_seed()))),
        "results": mm_dist.collect_results([info.rank], 2, "npu"),
    }


def train(info, **options):
    """Train with DDP; return the weights' sum, and the largest difference between the ranks."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    net = net.to(info.device)
    model = mm_dist.MMDistributedDataParallel(net, device_ids=[info.device.index], **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        generator = torch.Generator().manual_seed(10 * step + info.rank)
        images = torch.randn(6, 4, generator=generator)  # on the CPU: DDP moves it
        model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    both = mm_dist.all_gather(weights)
    return float(weights.sum()), float((both[0] - both[1]).abs().max())


def shard(info):
    """Train with parameters sharded over the NPUs; say what a fused optimizer makes of them."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(info.device)
    model = mm_dist.MMFullyShardedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(6, 4, device=info.device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    weights = [p.full_tensor() for p in model.parameters()]
    try:
        mm_npu.NpuFusedAdamW(model.parameters())
    except mm_npu.ConfigError as error:
        refusal = str(error)
    return {
        "losses": losses,
        "shapes": [list(weight.shape) for weight in weights],
        "devices": sorted({str(weight.device) for weight in weights}),
        "refusal": refusal,
    }


def main(folder):
    info = mm_dist.init_dist(os.environ.get("LAUNCHER", "auto"))
    found = describe_start(info)
    if os.environ.get("ONLY_START") != "1":
        found["collectives"] = collectives(info)
        ways = ({}, {"gradient_as_bucket_view": True}, {"static_graph": True})
        found["ddp"] = [train(info, **options) for options in ways]
        found["sharded"] = shard(info)
    Path(folder, f"{info.rank}.json").write_text(json.dumps(found), encoding="utf-8")
    mm_dist.barrier()
    time.sleep(0.05)  # gloo's threads let go of what they hold
    mm_dist.destroy_dist()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
