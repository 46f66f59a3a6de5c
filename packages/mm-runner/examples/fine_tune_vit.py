"""Fine-tune a Vision Transformer of timm: first its new head, then all of it.

Digits below five stand for the large dataset that a model is pretrained on. With a network at hand,
``timm.create_model(..., pretrained=True)`` has weights of its own.
"""

import timm
import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset, Subset, TensorDataset

from mm_runner import Runner

images, labels = map(torch.tensor, load_digits(return_X_y=True))
digits = TensorDataset(images.float().reshape(-1, 1, 8, 8) / 16, labels)
few = Subset(digits, torch.nonzero(labels < 5).flatten().tolist())


def train(name: str, dataset: Dataset, classes: int, epochs: int, **more: object) -> None:
    """Train a small ViT on ``dataset`` in ``work_dirs/<name>``."""
    sizes = {"img_size": 8, "patch_size": 2, "in_chans": 1, "embed_dim": 48, "depth": 3}
    loader = {"dataset": dataset, "batch_size": 64, "collate_fn": "default_collate"}
    Runner(
        model=timm.create_model("vit_tiny_patch16_224", num_classes=classes, **sizes),
        work_dir=f"work_dirs/{name}",
        cfg={"loss": "torch.nn.functional:cross_entropy"},
        train_dataloader=loader,
        train_cfg={"max_epochs": epochs, "val_interval": epochs},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 2e-3}},
        val_dataloader=loader,
        val_evaluator={"type": "Accuracy"},
        overwrite=True,
        **more,
    ).train()


train("pretrained", few, classes=5, epochs=8)
frozen = {"type": "FreezeHook", "patterns": ["blocks.*", "patch_embed.*"], "num_epochs": 2}
last = "work_dirs/pretrained/epoch_8.pth"  # all of it fits but the head
train("fine_tuned", digits, classes=10, epochs=12, load_from=last, custom_hooks=[frozen])
