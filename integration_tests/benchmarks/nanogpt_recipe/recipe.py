"""Model, text and batches of nanoGPT's CPU recipe for characters, for all who train it.

Sizes and settings are those that https://github.com/karpathy/nanoGPT gives in its README and in
``config/train_shakespeare_char.py``; the code is not from there.
"""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import IterableDataset

BLOCK_SIZE, BATCH_SIZE = 64, 12
DEPTH, HEADS, WIDTH = 4, 4, 128
LEARNING_RATE, MIN_LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, 1e-4, (0.9, 0.99), 0.1
WARM_UP, DECAY_END, EVAL_INTERVAL, EVAL_BATCHES = 100, 2000, 250, 20
SEED = 1337
_NUM_CHARACTERS = 1_115_394  # of the original's text
_ALPHABET = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def write_text(folder):
    """Write ``train.bin`` and ``val.bin``: made-up words, a few of which may follow each."""
    draw = random.Random(0)  # noqa: S311 (the same text each time)
    syllables = [a + b for a in "bcdfghklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(draw.choices(syllables, k=draw.choice((1, 2, 2, 3)))) for _ in range(1500)]
    followers = {word: draw.choices(words, k=6) for word in words}
    pieces, size, word = [], 0, words[0]
    while size < _NUM_CHARACTERS:
        line = []
        for _ in range(draw.randint(4, 9)):
            word = draw.choices(followers[word], weights=(32, 16, 8, 4, 2, 1))[0]
            line.append(word)
        pieces.append(" ".join(line).capitalize() + draw.choice(".,;?!") + "\n")
        size += len(pieces[-1])
    index = {character: number for number, character in enumerate(_ALPHABET)}
    numbers = np.array([index[x] for x in "".join(pieces)[:_NUM_CHARACTERS]], dtype=np.uint16)
    numbers[: len(numbers) * 9 // 10].tofile(folder / "train.bin")
    numbers[len(numbers) * 9 // 10 :].tofile(folder / "val.bin")


def draw_batches(split, seed):
    """Yield batches of windows into the text of a split, from places drawn at random."""
    text = torch.from_numpy(np.fromfile(Path(f"{split}.bin"), dtype=np.uint16).astype(np.int64))
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(BLOCK_SIZE)
    while True:
        starts = torch.randint(len(text) - BLOCK_SIZE, (BATCH_SIZE, 1), generator=generator)
        places = starts + window
        yield {"inputs": text[places], "targets": text[places + 1]}


class Batches(IterableDataset):
    """Batches to train on, without end."""

    def __iter__(self):
        return draw_batches("train", SEED)


class EvaluationWindows(IterableDataset):
    """The windows of batches of both splits one by one, others in each evaluation."""

    def __init__(self):
        self._draws = {split: draw_batches(split, SEED + 1) for split in ("train", "val")}

    def __len__(self):
        return len(self._draws) * EVAL_BATCHES * BATCH_SIZE

    def __iter__(self):
        for split, batches in self._draws.items():
            for batch in itertools.islice(batches, EVAL_BATCHES):
                for inputs, targets in zip(*batch.values(), strict=True):
                    yield {"inputs": inputs, "targets": targets, "split": split}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = (nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.attention = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attention_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp, self.gelu = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.GELU()
        self.mlp_out = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        heads = self.attention(self.norm_1(x)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp_out(self.gelu(self.mlp(self.norm_2(x))))


class GPT(nn.Module):
    """GPT-2's layers, with embeddings that are the head's weights too; returns the loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(_ALPHABET), WIDTH)
        self.positions = nn.Embedding(BLOCK_SIZE, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, len(_ALPHABET), bias=False)
        self.head.weight = self.embedding.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scale = math.sqrt(2 * DEPTH) if "_out" in name else 1
                nn.init.normal_(parameter, std=0.02 / scale)

    def forward(self, inputs, targets):
        x = self.embedding(inputs) + self.positions.weight[: inputs.shape[1]]
        logits = self.head(self.norm(self.blocks(x)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
