"""Train on one process or on many: the same script under every launcher.

    python examples/distributed_training.py
    torchrun --nproc_per_node=2 examples/distributed_training.py
    python -m torch.distributed.launch --nproc_per_node=2 examples/distributed_training.py \
        --launcher pytorch
    srun --ntasks=16 --ntasks-per-node=8 python examples/distributed_training.py --launcher="slurm"

Run again with ``--resume``, it continues where it stopped.
"""

from __future__ import annotations

import argparse
from typing import Any

from digits import DigitsResNet, dataloader, report

from mm_compile import can_compile
from mm_dist import add_launcher_arguments, available_device_type, is_main_process
from mm_runner import Runner


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small ResNet on handwritten digits.")
    add_launcher_arguments(parser)
    parser.add_argument("--work-dir", default="work_dirs/distributed_training")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of one process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--amp", choices=["float16", "bfloat16", "auto"], help="mixed precision")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--device", help="cpu, cuda, npu, ...; by default what is there")
    parser.add_argument("--at-least", type=float, default=0, help="test accuracy that is a success")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    return parser.parse_args()


def optim_wrapper(amp: str | None) -> dict[str, Any]:
    """Return the config of the optimizer, with mixed precision if asked for."""
    optimizer = {"type": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
    if amp is None:
        return {"type": "OptimWrapper", "optimizer": optimizer}
    return {"type": "AmpOptimWrapper", "dtype": amp, "optimizer": optimizer}


def main() -> None:
    """Train, test, and draw the curves."""
    arguments = parse_arguments()
    compiled = arguments.compile
    support = can_compile(compiled, arguments.device or available_device_type())
    runner = Runner(
        model={"type": DigitsResNet},  # built after seeding
        work_dir=arguments.work_dir,
        launcher=arguments.launcher,
        train_dataloader=dataloader("train", arguments.batch_size),
        val_dataloader=dataloader("val", 30),
        test_dataloader=dataloader("test", 30),
        train_cfg={"by_epoch": True, "max_epochs": arguments.epochs, "val_interval": 2},
        val_cfg={},
        test_cfg={},
        optim_wrapper=optim_wrapper(arguments.amp),
        param_scheduler={"type": "CosineAnnealingLR", "by_epoch": True},
        val_evaluator={"type": "Accuracy"},
        test_evaluator={"type": "Accuracy"},
        default_hooks={
            "checkpoint": {"type": "CheckpointHook", "interval": 1, "max_keep_ckpts": 2}
        },
        randomness={"seed": arguments.seed},
        env_cfg={"dist_cfg": {"device_type": arguments.device}},
        resume=arguments.resume,
        overwrite=True,  # an example may be run again; without effect where it resumes
        cfg={"compile": compiled and support.ok},
    )
    if compiled and not support.ok and is_main_process():
        print(f"Not compiled, running eagerly: {support.reason}")
    runner.train()
    report(runner, at_least=arguments.at_least)


if __name__ == "__main__":
    main()
