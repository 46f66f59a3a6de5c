"""The recipe with the Runner, in Python."""

import sys

import recipe
from evaluation import Losses

from mm_runner import Runner


def main(num_steps):
    Runner(
        model={"type": recipe.GPT},
        work_dir="work_dir",
        train_dataloader={"dataset": recipe.Batches(), "batch_size": None},
        train_cfg={
            "by_epoch": False,
            "max_iters": num_steps,
            "val_interval": recipe.EVAL_INTERVAL,
        },
        optim_wrapper={
            "optimizer": {
                "type": "AdamW",
                "lr": recipe.LEARNING_RATE,
                "betas": recipe.BETAS,
                "weight_decay": recipe.WEIGHT_DECAY,
            },
            "clip_grad": {"max_norm": 1.0},
            "paramwise_cfg": {"flat_decay_mult": 0.0},
        },
        param_scheduler=[
            {
                "type": "LinearLR",
                "start_factor": 1 / (recipe.WARM_UP + 1),
                "by_epoch": False,
                "end": recipe.WARM_UP + 1,
            },
            {
                "type": "CosineAnnealingLR",
                "eta_min": recipe.MIN_LEARNING_RATE,
                "by_epoch": False,
                "begin": recipe.WARM_UP,
                "end": recipe.DECAY_END,
            },
        ],
        val_dataloader={
            "dataset": recipe.EvaluationWindows(),
            "batch_size": recipe.BATCH_SIZE,
            "collate_fn": "default_collate",
        },
        val_evaluator=Losses(),
        default_hooks={
            "logger": {"type": "LoggerHook", "interval": 1},
            "checkpoint": {
                "type": "CheckpointHook",
                "by_epoch": False,
                "save_last": False,
                "save_best": "val_loss",
            },
        },
        randomness={"seed": recipe.SEED},
    ).train()


if __name__ == "__main__":
    main(int(sys.argv[1]))
