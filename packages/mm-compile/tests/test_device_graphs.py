"""Tested on the CPU, through a stand-in for what records and replays device graphs."""

import copy

import pytest
import torch
from blocks import Stack
from toy import needs_compile

from mm_compile import compile_model

pytestmark = [
    needs_compile,
    pytest.mark.skipif(not hasattr(torch, "compiler"), reason="this torch has no such graphs"),
]
by_regions = pytest.mark.parametrize("regions", [None, "auto"])


class Recorder:
    """A backend whose graphs write to the same memory in each iteration, as recorded ones do."""

    def __init__(self):
        self.num_marks = 0
        self._position = 0
        self._memory = {}
        self.__name__ = "recorder"

    def mark(self):
        self.num_marks += 1
        self._position = 0

    def __call__(self, graph_module, example_inputs, mode=None):
        from functorch.compile import make_boxed_func  # noqa: PLC0415 - imports dynamo
        from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415

        assert mode == "reduce-overhead"

        def compiled(graph, _inputs):
            return make_boxed_func(lambda *args: self._replay(graph, graph.forward(*args)))

        return aot_autograd(fw_compiler=compiled, bw_compiler=compiled)(
            graph_module, example_inputs
        )

    def _replay(self, graph, outputs):
        key = (id(graph), self._position)
        self._position += 1
        memory = self._memory.setdefault(key, [None] * len(outputs))
        for index, output in enumerate(outputs):
            if not isinstance(output, torch.Tensor):
                memory[index] = output
            elif memory[index] is None:
                memory[index] = output.detach().clone()
            else:
                memory[index].copy_(output)
        # New tensors each time, as torch makes them: autograd takes a gradient that nobody else
        # holds for ``.grad`` as it is.
        return [each.detach() if isinstance(each, torch.Tensor) else each for each in memory]


@pytest.fixture
def recorder(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr("mm_compile._device_graphs.is_recorded", lambda _tensor: True)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", recorder.mark, raising=False)
    return recorder


class Losing(Stack):
    """Equal blocks, and a loss that the model returns in a dict."""

    def forward(self, inputs):
        return {"loss": super().forward(inputs).square().mean()}


def make_pair(recorder, regions):
    torch.manual_seed(0)
    eager = Losing(3)
    model = copy.deepcopy(eager)
    cfg = {"backend": recorder, "mode": "reduce-overhead", "regions": regions}
    return eager, model, compile_model(model, cfg)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


@by_regions
def test_accumulated_gradients_and_kept_losses_are_those_of_eager_code(recorder, regions):
    eager, model, _ = make_pair(recorder, regions)
    batches = torch.randn(6, 5, 4)
    for each in (eager, model):
        each.losses = []
        for batch in batches:
            loss = each(batch)["loss"]
            loss.backward()
            each.losses.append(loss.detach())
    torch.testing.assert_close(gradients(model), gradients(eager))
    torch.testing.assert_close(model.losses, eager.losses)
    assert recorder.num_marks == 6


@by_regions
def test_a_model_called_twice_before_backward_is_one_iteration(recorder, regions):
    eager, model, _ = make_pair(recorder, regions)
    for _ in range(3):
        first, second = torch.randn(2, 5, 4)
        for each in (eager, model):
            each.zero_grad()
            (each(first)["loss"] + each(second)["loss"] ** 2).backward()
    torch.testing.assert_close(gradients(model), gradients(eager))
    assert recorder.num_marks == 3


def test_results_that_nobody_goes_backward_from_are_not_waited_for(recorder):
    eager, model, handle = make_pair(recorder, None)
    batches = torch.randn(4, 5, 4)
    with torch.no_grad():
        losses = [model(batch)["loss"] for batch in batches]
        torch.testing.assert_close(losses, [eager(batch)["loss"] for batch in batches])
    assert recorder.num_marks == 4
    for batch in batches:
        model(batch)["loss"].item()
    assert recorder.num_marks == 8
    handle.undo()
    model(batches[0])["loss"].backward()
    assert recorder.num_marks == 8
    assert not any(parameter._backward_hooks for parameter in model.parameters())
