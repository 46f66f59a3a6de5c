import logging
import re

import pytest
import torch
from blocks import Block, Stack
from torch import nn
from toy import CountingBackend, Toy, needs_compile, told_of

from mm_compile import CompileError, compile_model
from mm_compile._torch import torch_version

pytestmark = needs_compile


class RefusingBackend(CountingBackend):
    """Refuses graphs of which ``refuses(inputs)`` is true."""

    def __init__(self, refuses):
        super().__init__()
        self._refuses = refuses

    def __call__(self, graph_module, example_inputs):
        inputs = [each for each in example_inputs if isinstance(each, torch.Tensor)]
        # Before torch 2.5 parameters are no inputs of a graph.
        if self._refuses([*inputs, *graph_module.parameters()]):
            raise NotImplementedError("no kernel for this")
        return super().__call__(graph_module, example_inputs)


def has_size(size):
    return lambda inputs: any(size in each.shape for each in inputs)


def train(model, steps=3, rows=5):
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(rows, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def four_blocks():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(4, 4, hidden=hidden) for hidden in (4, 4, 4, 17)))


def test_one_of_four_blocks_fails_and_the_run_goes_on(caplog):
    backend = RefusingBackend(has_size(17))
    model, eager = four_blocks(), four_blocks()
    handle = compile_model(model, {"backend": backend, "regions": ["*"], "on_error": "eager"})
    with caplog.at_level(logging.WARNING, "mm_compile"):
        torch.testing.assert_close(train(model), train(eager))
    assert [region.is_compiled for region in handle.regions] == [True, True, True, False]
    assert backend.calls == 9
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mm_")]
    assert line.startswith("compile: 3 (Block) runs eagerly from now on: NotImplementedError: no ")
    assert "blocks.py:" in line
    assert "no kernel for this" in handle.regions[3].failure


def test_raise_is_the_default_and_says_how_to_switch():
    model = four_blocks()
    handle = compile_model(model, {"backend": RefusingBackend(has_size(17)), "regions": ["*"]})
    with pytest.raises(CompileError, match=r"3 \(Block\).*no kernel.*on_error=\"eager\"") as caught:
        train(model)
    assert caught.value.__cause__ is not None
    handle.undo()
    train(model)


@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_either_way_a_backends_refusal_names_where_its_graph_begins(on_error, caplog):
    backend = RefusingBackend(has_size(17))
    model = four_blocks()
    compile_model(model, {"backend": backend, "regions": ["*"], "on_error": on_error})
    message = told_of(lambda: train(model), caplog)
    where = r"at .*blocks\.py:\d+"
    assert re.search(rf": NotImplementedError: no kernel for this \({where}\)", message)


class Nodewise(CountingBackend):
    """Goes through a graph node by node, and refuses ``torch.sinh``."""

    def __call__(self, graph_module, example_inputs):
        class Refusing(torch.fx.Interpreter):
            def run_node(self, n):
                if n.target is torch.sinh:
                    raise NotImplementedError(
                        "no sinh\n  target: sinh.default\n  args[0]: Tensor(Box(\n  pages of it"
                    )
                return super().run_node(n)

        Refusing(graph_module).run(*example_inputs)
        return super().__call__(graph_module, example_inputs)


class Sinh(nn.Linear):
    def forward(self, inputs):
        outputs = super().forward(inputs)
        return torch.sinh(outputs) + 1


@pytest.mark.skipif(torch_version() < (2, 1), reason="torch 2.0 gives backends fake inputs")
@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_a_node_that_is_refused_is_named_by_its_own_line(on_error, caplog):
    model = nn.Sequential(nn.ReLU(), Sinh(4, 4))
    compile_model(model, {"backend": Nodewise(), "on_error": on_error})
    message = told_of(lambda: model(torch.randn(2, 4)), caplog)
    line = Sinh.forward.__code__.co_firstlineno + 2
    assert f"no sinh target: sinh.default (at {__file__}:{line})" in message


def test_a_later_recompilation_that_fails_falls_back_too(model):
    backend = RefusingBackend(has_size(6))
    model.eval()
    handle = compile_model(model, {"backend": backend, "dynamic": False, "on_error": "eager"})
    model(torch.randn(5, 4))
    assert handle.regions[0].is_compiled
    inputs = torch.randn(6, 4)
    outputs = model(inputs)
    assert not handle.regions[0].is_compiled
    handle.undo()
    torch.testing.assert_close(model(inputs), outputs)


class Counted(nn.Module):
    """Changes a buffer before its code is cut in two; its second part is refused."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.last = nn.Linear(4, 17)

    def forward(self, inputs):
        outputs = self.norm(inputs)
        torch._dynamo.graph_break()
        return self.last(outputs)


def test_nothing_runs_twice_when_the_second_part_of_a_method_is_refused():
    model = Counted()
    backend = RefusingBackend(has_size(17))
    handle = compile_model(model, {"backend": backend, "on_error": "eager"})
    for number in (1, 2):
        model(torch.randn(5, 4))
        assert model.norm.num_batches_tracked == number
    assert not handle.regions[0].is_compiled


class FailingOnce(CountingBackend):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def __call__(self, graph_module, example_inputs):
        error, self.error = self.error, None
        if error is not None:
            raise error
        return super().__call__(graph_module, example_inputs)


PASSING = [MemoryError("host"), torch.cuda.OutOfMemoryError("device"), OSError(28, "disk full")]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_an_error_that_may_pass_is_raised_and_the_next_call_compiles(error, on_error):
    model, backend = Toy(), FailingOnce(error)
    handle = compile_model(model, {"backend": backend, "on_error": on_error})
    with pytest.raises(type(error)) as caught:
        model(torch.randn(5, 4))
    assert caught.value is error
    model(torch.randn(5, 4))
    assert backend.calls == 1
    assert handle.regions[0].is_compiled


class Unsupported(nn.Module):
    def forward(self, inputs):
        torch._dynamo.graph_break()
        return inputs + 1


def test_code_that_dynamo_does_not_support_falls_back(backend):
    model = Unsupported()
    cfg = {"backend": backend, "fullgraph": True}
    handle = compile_model(model, cfg)
    with pytest.raises(CompileError, match=r"Unsupported.*test_on_error\.py:\d+"):
        model(torch.zeros(3))
    handle.undo()
    handle = compile_model(model, {**cfg, "on_error": "eager"})
    assert model(torch.zeros(3)).tolist() == [1, 1, 1]
    assert "test_on_error.py:" in handle.regions[0].failure
    assert backend.calls == 0


@pytest.mark.parametrize("on_error", ["raise", "eager"])
def test_an_error_of_the_users_own_stays_what_it_is(model, backend, on_error):
    handle = compile_model(model, {"backend": backend, "on_error": on_error})
    with pytest.raises(RuntimeError, match=r"(?i)shape|size") as caught:
        model(torch.randn(5, 3))
    assert not isinstance(caught.value, CompileError)
    assert handle.regions[0].is_compiled
    assert model(torch.randn(5, 4)).shape == (5, 1)


def refusing_backward(graph_module, example_inputs):
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - imports dynamo

    def refuse(_graph_module, _inputs):
        raise NotImplementedError("no kernel for backward")

    return aot_autograd(fw_compiler=lambda graph, _inputs: graph.forward, bw_compiler=refuse)(
        graph_module, example_inputs
    )


@pytest.mark.skipif(torch_version() < (2, 9), reason="this torch compiles backward when it runs")
def test_a_backward_that_does_not_compile_falls_back_before_it_runs():
    model, eager = Stack(1), Stack(1)
    eager.load_state_dict(model.state_dict())
    handle = compile_model(model, {"backend": refusing_backward, "on_error": "eager"})
    torch.testing.assert_close(train(model), train(eager))
    assert "no kernel for backward" in handle.regions[0].failure
