"""Train low-rank adapters (LoRA, of PEFT) of a GPT-2 that is made from its configuration.

``transformers:AutoModelForCausalLM.from_pretrained`` takes a directory of weights instead.
"""

import torch

from mm_runner import Runner

TEXT = "the quick brown fox jumps over the lazy dog. " * 40
tokens = torch.tensor(list(TEXT.encode()))
# The model shifts the labels itself.
samples = [{"input_ids": part, "labels": part} for part in tokens.unfold(0, 33, 9)]
gpt2 = {"vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}

runner = Runner(
    model={
        "type": "peft:get_peft_model",
        "model": {
            "type": "transformers:AutoModelForCausalLM.from_config",
            "config": {"type": "transformers:GPT2Config", **gpt2},
        },
        "peft_config": {"type": "peft:LoraConfig", "r": 8, "target_modules": ["c_attn", "c_fc"]},
    },
    work_dir="work_dirs/gpt2_lora",
    train_dataloader={"dataset": samples, "batch_size": 16, "collate_fn": "default_collate"},
    train_cfg={"max_epochs": 6},
    optim_wrapper={
        "type": "AmpOptimWrapper",
        "dtype": "bfloat16",
        "optimizer": {"type": "AdamW", "lr": 0.02},
    },
    overwrite=True,
)
runner.train().net.save_pretrained("work_dirs/gpt2_lora/adapter")
