import gc
import weakref

import pytest
import torch
from torch import nn
from toy import Toy, needs_compile

from mm_compile import AlreadyCompiledError, ConfigError, NotAModelError, compile_model
from mm_compile._torch import torch_version

pytestmark = needs_compile


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_compiled_results_and_gradients_equal_eager_ones(model, name):
    inputs = torch.randn(5, 4)
    model.eval()
    eager_loss = model(inputs, mode="loss")["loss"]
    eager_gradients = torch.autograd.grad(eager_loss, list(model.parameters()))
    compile_model(model, {"backend": name})
    loss = model(inputs, mode="loss")["loss"]
    torch.testing.assert_close(loss, eager_loss)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(gradients, eager_gradients)


def test_training_and_evaluation_both_run_compiled_code(model, backend):
    compile_model(model, {"backend": backend})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train_step(torch.randn(5, 4), optimizer)
    assert backend.calls == 1
    model.eval()
    with torch.no_grad():
        model.val_step(torch.randn(5, 4))
    assert backend.calls == 2


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(4, 1), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())],
    ids=["layer", "container"],
)
def test_modules_of_torch_itself_are_compiled_too(backend, make):
    layer = make()
    if isinstance(layer, nn.Linear) and not hasattr(layer, "compile"):
        pytest.skip("torch 2.0 compiles no single layer of its own")
    before = dict(vars(layer))
    handle = compile_model(layer, {"backend": backend})
    layer(torch.randn(5, 4))
    assert backend.calls == 1
    with pytest.raises(AlreadyCompiledError):
        compile_model(layer, {"backend": backend})
    handle.undo()
    assert vars(layer) == before


@pytest.mark.parametrize("cfg", [True, {"dynamic": False}])
def test_keys_may_be_keywords(model, backend, cfg):
    handle = compile_model(model, cfg, backend=backend, mode="default")
    model(torch.randn(5, 4))
    assert backend.graphs == 1
    handle.undo()
    assert not compile_model(model, cfg=False, backend=backend).enabled
    assert compile_model(model, "auto", backend=backend, on_error="raise").enabled
    with pytest.raises(ConfigError, match=r"no argument 'mod'. Did you mean 'mode'"):
        compile_model(model, cfg, mod="default")


def test_a_keyword_wins_over_the_config(model, backend):
    compile_model(model, {"backend": "nothing-like-it"}, backend=backend)
    model(torch.randn(5, 4))
    assert backend.graphs == 1


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(torch.randn(5, 4)),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: model.train(),
        lambda model: model.training,
    ],
    ids=["call", "parameters", "train", "training"],
)
def test_a_handle_used_as_the_model_says_that_it_is_none(model, backend, use):
    model = compile_model(model, backend=backend)
    with pytest.raises(NotAModelError, match=r"compiles the model in place.*without `model = `"):
        use(model)


def test_keys_and_parameters_stay_what_they_were(model, backend):
    keys = list(model.state_dict())
    parameters = list(map(id, model.parameters()))
    handle = compile_model(model, {"backend": backend})
    model(torch.randn(5, 4))
    assert list(model.state_dict()) == keys
    assert list(map(id, model.parameters())) == parameters
    assert type(model) is Toy
    handle.undo()
    assert list(model.state_dict()) == keys


def test_hooks_still_fire(model, backend):
    seen = []
    model.register_forward_hook(lambda *_: seen.append("model"))
    model.first.register_forward_hook(lambda *_: seen.append("first"))
    compile_model(model, {"backend": backend})
    model(torch.randn(5, 4))
    assert seen.count("model") == 1
    assert "first" in seen  # torch 2.0 fires it once more while it captures


def test_undo_restores_exactly_and_may_be_repeated(model, backend):
    before = dict(vars(model))
    handle = compile_model(model, {"backend": backend})
    assert handle.enabled
    handle.undo()
    handle.undo()
    assert not handle.enabled
    assert vars(model) == before
    model(torch.randn(5, 4))
    assert backend.calls == 0


def test_compiling_twice_says_to_undo_first(model, backend):
    handle = compile_model(model, {"backend": backend})
    with pytest.raises(AlreadyCompiledError, match=r"Call undo\(\)"):
        compile_model(model, {"backend": backend})
    handle.undo()
    assert compile_model(model, {"backend": backend}).enabled


def test_the_model_is_freed_with_its_last_reference(backend):
    model = Toy()
    handle = compile_model(model, {"backend": backend})
    model(torch.randn(5, 4))
    alive = weakref.ref(model)
    gc.collect()
    gc.disable()
    try:
        del model
        assert alive() is None
    finally:
        gc.enable()
    handle.undo()


@pytest.mark.skipif(torch_version() < (2, 5), reason="this torch nests no compiled code")
def test_the_model_may_lie_in_code_that_is_compiled_around_it(model, backend):
    compile_model(model, {"backend": "eager"})
    whole = torch.compile(lambda inputs: model(inputs) + 1, backend=backend)
    model.eval()
    inputs = torch.randn(5, 4)
    torch.testing.assert_close(whole(inputs), model(inputs) + 1)
    assert backend.calls >= 1
