"""Runs of models of other libraries; as a script: ``foreign_models.py KIND WORK_DIR``."""

import sys

import torch
from transformers import BatchEncoding

from mm_runner import Runner

BERT = {
    "type": "transformers:BertConfig",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 2,
}
GPT2 = {"type": "transformers:GPT2Config", "vocab_size": 64, "n_positions": 16, "n_embd": 16}
GPT2 |= {"n_layer": 2, "n_head": 2}
VIT = {"img_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 2, "num_heads": 2}
MODELS = {
    "bert": {
        "type": "transformers:AutoModelForSequenceClassification.from_config",
        "config": BERT,
    },
    "lora": {
        "type": "peft:get_peft_model",
        "model": {"type": "transformers:AutoModelForCausalLM.from_config", "config": GPT2},
        "peft_config": {"type": "peft:LoraConfig", "r": 2, "target_modules": ["c_attn"]},
    },
    "vit": {
        "type": "timm:create_model",
        "model_name": "vit_tiny_patch16_224",
        "drop_rate": 0.2,
        "num_classes": 2,
        **VIT,
    },
    "resnet": {"type": "torchvision.models:resnet18", "num_classes": 2},
}


def tokens_and_labels(size=24):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 64, (size, 8), generator=generator)
    return tokens, tokens[:, 0] % 2


def encode(samples):
    """Collate as a tokenizer does, with an entry that no model takes."""
    tokens, labels = (torch.stack(parts) for parts in zip(*samples, strict=True))
    return BatchEncoding({"input_ids": tokens, "labels": labels, "name": ["a"] * len(tokens)})


def continue_text(samples):
    tokens = torch.stack([one for one, _ in samples])
    return {"input_ids": tokens, "labels": tokens}


def images_and_labels(size=24):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) % 2
    return torch.randn(size, 3, 8, 8, generator=generator) + labels[:, None, None, None], labels


def make_runner(kind, work_dir, *hooks, epochs=3, **more):
    """Make a runner of a small model on 24 samples, six steps an epoch of one process."""
    is_text = kind in ("bert", "lora")
    data = torch.utils.data.TensorDataset(
        *(tokens_and_labels() if is_text else images_and_labels())
    )
    collate = {"bert": encode, "lora": continue_text}.get(kind, "default_collate")
    loader = {"dataset": data, "batch_size": 4, "collate_fn": collate}
    cfg = {} if is_text else {"loss": "torch.nn.functional:cross_entropy"}
    return Runner(
        model=MODELS[kind],
        work_dir=str(work_dir),
        cfg=cfg,
        train_dataloader=loader,
        train_cfg={"max_epochs": epochs},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 0.01}},
        custom_hooks=list(hooks),
        randomness={"seed": 1},
        **more,
    )


if __name__ == "__main__":
    make_runner(*sys.argv[1:3]).train()
