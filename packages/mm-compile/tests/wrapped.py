"""Models to be wrapped, the steps that train them, and a backend that watches these."""

from contextlib import nullcontext

import torch
from blocks import Block
from torch import nn


class Watch:
    """A backend that writes down which graphs run, forward and backward; compiles nothing."""

    def __init__(self):
        self.events = []
        self.graphs = 0
        self.__name__ = "watch"

    def count(self, event):
        return self.events.count(event)

    def __call__(self, graph_module, example_inputs):
        from functorch.compile import make_boxed_func  # noqa: PLC0415 - imports dynamo
        from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415

        self.graphs += 1

        def compiler_of(event):
            def compiled(graph, _inputs):
                def run(*args):
                    self.events.append(event)
                    return graph.forward(*args)

                return make_boxed_func(run)

            return compiled

        aot = aot_autograd(fw_compiler=compiler_of("forward"), bw_compiler=compiler_of("backward"))
        return aot(graph_module, example_inputs)


class Dropping(Block):
    """A block that is random, so that computing it again must draw the same numbers."""

    def __init__(self, size):
        super().__init__(size, size)
        self.drop = nn.Dropout(0.3)

    def forward(self, inputs):
        return self.inner(inputs)

    def inner(self, inputs):
        return torch.relu(self.drop(self.last(self.norm(self.first(inputs)))))


class Net(nn.Module):
    """Equal blocks between a stem and a head."""

    def __init__(self, kind=Dropping, size=4, number=3):
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Linear(4, size)
        self.blocks = nn.ModuleList(kind(size) for _ in range(number))
        self.head = nn.Linear(size, 1)

    def forward(self, inputs):
        outputs = self.stem(inputs)
        for block in self.blocks:
            outputs = self.call(block, outputs)
        return self.head(outputs)

    def call(self, block, inputs):
        return block(inputs)


class Accumulating(nn.Module):
    """Two calls of one block before backward."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Dropping(4) for _ in range(2))

    def forward(self, inputs):
        first, second = self.blocks
        return second(first(second(first(inputs))))


def train(model, rank=0, rows=(5, 5, 5), no_sync=None, context=nullcontext):
    """Take an SGD step after each two batches of the given numbers of rows, and after the last.

    Returns:
        The losses.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for index, number in enumerate(rows):
        accumulates = index % 2 == 0 and index + 1 < len(rows)
        torch.manual_seed(index)  # for dropout
        with no_sync() if accumulates and no_sync else nullcontext():
            with context():
                loss = model(torch.randn(number, 4, generator=generator)).float().square().mean()
            loss.backward()
        losses.append(loss.item())
        if not accumulates:
            optimizer.step()
            optimizer.zero_grad()
    return losses
