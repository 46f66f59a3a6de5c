"""Models made of repeated blocks, and backends that refuse."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, size, size_out, hidden=None):
        super().__init__()
        self.first = nn.Linear(size, hidden or size_out)
        self.norm = nn.LayerNorm(hidden or size_out)
        self.last = nn.Linear(hidden or size_out, size_out)

    def forward(self, inputs):
        return torch.relu(self.last(self.norm(self.first(inputs))))


class Stack(nn.Module):
    """Equal blocks, one after the other."""

    def __init__(self, number, size=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size, size) for _ in range(number))
        self.head = nn.Linear(size, 1)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)

    def predict(self, inputs):
        return self.head(inputs).sigmoid()


class Stages(nn.Module):
    """Two stages of three blocks, the way a ResNet is made."""

    def __init__(self):
        super().__init__()
        # Dynamo distinguishes inputs that have a gradient: no block gets the model's own.
        self.stem = nn.Linear(4, 4)
        first = nn.Sequential(*(Block(4, 4) for _ in range(3)))
        self.stages = nn.Sequential(
            first, nn.Sequential(Block(4, 8), *(Block(8, 8) for _ in range(2)))
        )
        self.head = nn.Linear(8, 1)

    def forward(self, inputs):
        return self.head(self.stages(self.stem(inputs)))


class Step(Block):
    """A block whose code reads a number that no other block has."""

    def __init__(self, size, index):
        super().__init__(size, size)
        self.index = index

    def forward(self, inputs):
        return super().forward(inputs) * (1 + self.index)


class Steps(Stack):
    def __init__(self, number):
        super().__init__(0)
        self.blocks = nn.ModuleList(Step(4, index) for index in range(number))
