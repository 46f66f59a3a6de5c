import pytest
import torch
from torch import nn
from toy import needs_compile

from mm_compile import ConfigError, compile_model

pytestmark = [
    needs_compile,
    # Dynamo looks at the gradient of the loss, a tensor that has none, after its graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def test_train_step_is_compiled_and_evaluation_is_not(model, backend):
    compile_model(model, {"target": "train_step", "backend": backend})
    before = model.first.weight.detach().clone()
    result = model.train_step(torch.randn(5, 4), torch.optim.SGD(model.parameters(), lr=0.1))
    assert result["loss"].shape == ()
    assert not torch.equal(model.first.weight, before)
    calls = backend.calls
    assert calls > 0
    model.val_step(torch.randn(5, 4))
    assert backend.calls == calls


def test_undo_brings_a_method_of_the_object_back(model, backend):
    def own_train_step(inputs, optimizer):
        return type(model).train_step(model, inputs, optimizer)

    model.train_step = own_train_step
    handle = compile_model(model, {"target": "train_step", "backend": backend})
    model.train_step(torch.randn(5, 4), torch.optim.SGD(model.parameters(), lr=0.1))
    assert backend.calls > 0
    handle.undo()
    assert model.train_step is own_train_step


def test_a_model_without_train_step_is_refused():
    with pytest.raises(ConfigError, match="Linear has no method of that name"):
        compile_model(nn.Linear(2, 2), {"target": "train_step", "backend": "eager"})
