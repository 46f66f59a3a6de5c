"""Switch each acceleration on by itself, and see what it does.

python examples/train.py
python examples/train.py --amp bfloat16
python examples/train.py --compile --compile-mode max-autotune
python examples/train.py --optimizer NpuFusedAdamW --lr 0.003
python -m torch.distributed.launch --nproc_per_node=2 examples/train.py --launcher pytorch
"""

from __future__ import annotations

import argparse
from typing import Any

from digits import DigitsResNet, dataloader, report

from mm_dist import add_launcher_arguments
from mm_runner import Runner


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train a small ResNet with chosen accelerations.")
    add_launcher_arguments(parser)
    parser.add_argument("--work-dir", default="work_dirs/train")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument("--amp", choices=["float16", "bfloat16", "auto"], help="mixed precision")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--optimizer", default="SGD", help="any of torch.optim, or NpuFusedAdamW")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--compile-mode", help="as of torch.compile, for example max-autotune")
    return parser.parse_args()


def optim_wrapper(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the config of the optimizer and what surrounds it."""
    amp = {"type": "AmpOptimWrapper", "dtype": arguments.amp} if arguments.amp else {}
    return {
        **amp,
        "optimizer": {"type": arguments.optimizer, "lr": arguments.lr},
        "accumulative_counts": arguments.accumulate,
    }


def compile_cfg(arguments: argparse.Namespace) -> bool | dict[str, Any]:
    """Return what goes to ``cfg['compile']``."""
    if arguments.compile_mode:
        return {"backend": "inductor", "mode": arguments.compile_mode}
    return bool(arguments.compile)


def main() -> None:
    """Train, test, and draw the curves."""
    arguments = parse_arguments()
    runner = Runner(
        model={"type": DigitsResNet},  # built after seeding
        work_dir=arguments.work_dir,
        launcher=arguments.launcher,
        train_dataloader=dataloader("train", 32),
        val_dataloader=dataloader("val", 30),
        test_dataloader=dataloader("test", 30),
        train_cfg={"by_epoch": True, "max_epochs": arguments.epochs},
        val_cfg={},
        test_cfg={},
        optim_wrapper=optim_wrapper(arguments),
        val_evaluator={"type": "Accuracy"},
        test_evaluator={"type": "Accuracy"},
        randomness={"seed": 0},
        resume=arguments.resume,
        overwrite=True,  # an example may be run again; without effect where it resumes
        cfg={"compile": compile_cfg(arguments)},
    )
    runner.train()
    report(runner)


if __name__ == "__main__":
    main()
