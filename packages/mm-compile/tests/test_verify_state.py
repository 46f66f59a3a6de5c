"""What a verified call changes besides its outputs is changed once, as without ``verify``."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn
from toy import needs_compile, needs_torch_2_4

from mm_compile import compile_model

pytestmark = [needs_compile, needs_torch_2_4]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor


class Pair(NamedTuple):
    image: torch.Tensor


class Images(list):
    pass


def _image_of(batch):
    if isinstance(batch, (Sample, Pair)):
        return batch.image
    return batch.pop("image") if isinstance(batch, (dict, UserDict)) else batch.pop()


class Consuming(Layer):
    """Takes its input out of the batch, and changes it in place."""

    def forward(self, batch):
        return self.linear(_image_of(batch).add_(1))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda image: {"image": image},
        lambda image: OrderedDict(image=image),
        lambda image: UserDict(image=image),
        lambda image: [image],
        lambda image: Images([image]),
        Sample,
        Pair,
    ],
    ids=["dict", "OrderedDict", "UserDict", "list", "list subclass", "dataclass", "namedtuple"],
)
def test_a_batch_that_is_changed_is_changed_once(wrap, backend):
    model = Consuming()
    handle = compile_model(model, {"backend": backend, "verify": 1})
    image = torch.ones(2, 4)
    outputs = model(wrap(image))
    assert torch.equal(image, torch.full((2, 4), 2.0))
    assert torch.equal(outputs, model.linear(image))
    assert handle.regions[0].verified.num_calls == 1


def test_backward_of_a_comparison_ends_at_the_region(backend):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.head = Head(self.stem.weight)

        def forward(self, inputs):
            return self.head(OrderedDict(features=self.stem(inputs).exp()))

    class Head(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.weight = weight

        def forward(self, batch):
            return batch["features"] @ self.weight

    model = Tied()
    compile_model(model, {"backend": backend, "regions": ["head"], "verify": 1})
    # Would fail if the comparison had gone through the stem, whose weight the head has too.
    model(torch.ones(2, 4)).sum().backward()
