import copy
import pickle

import pytest
import torch
from toy import Toy, needs_compile

from mm_compile import compile_model

pytestmark = needs_compile


def through_pickle(model):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - our own bytes


copied = pytest.mark.parametrize("copied", [copy.deepcopy, through_pickle])


@copied
def test_a_copy_computes_with_its_own_parameters(model, backend, copied):
    compile_model(model, {"backend": backend})
    model.eval()
    inputs = torch.randn(5, 4)
    compiled = model(inputs)
    twin = copied(model)
    assert list(twin.state_dict()) == list(Toy().state_dict())
    torch.testing.assert_close(twin(inputs), compiled)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(inputs).any()
    torch.testing.assert_close(model(inputs), compiled)


@copied
def test_train_step_of_a_copy_trains_the_copy(model, backend, copied):
    compile_model(model, {"target": "train_step", "backend": backend})
    twin = copied(model)
    weight = model.first.weight.detach().clone()
    twin.train_step(torch.randn(5, 4), torch.optim.SGD(twin.parameters(), lr=0.1))
    assert torch.equal(model.first.weight, weight)
    assert not torch.equal(twin.first.weight, weight)
