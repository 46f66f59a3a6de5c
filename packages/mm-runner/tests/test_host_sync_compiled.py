"""Counting what waits for the device leaves compiled code compiled, and names its lines."""

import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toy import NO_VALIDATION, Classifier, needs_compile
from typing_extensions import override

from mm_runner.hooks import Hook, HostSyncHook

pytestmark = [
    needs_compile,
    # Dynamo looks at the gradient of a tensor that has none, such as a loss.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    # torch's inductor uses it when it is first imported.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]
needs_counting = pytest.mark.skipif(
    not hasattr(TorchDispatchMode, "ignore_compile_internals"), reason="torch is older than that"
)


@pytest.fixture(autouse=True)
def _fresh():
    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


class Graphs(Hook):
    """Keeps in which steps a graph ran; also the backend that runs it as it is."""

    priority = "LOWEST"

    def __init__(self):
        self.calls, self.per_step = 0, []

    def __call__(self, graph_module, _example_inputs):
        def run(*args):
            self.calls += 1
            return graph_module.forward(*args)

        return run

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.per_step.append(self.calls)
        self.calls = 0


class RunsUncompiled(Classifier):
    """Counts how often its code is run as Python."""

    runs = 0

    def forward(self, inputs, labels, mode="tensor"):
        if not torch.compiler.is_compiling():
            type(self).runs += 1
        return super().forward(inputs, labels, mode)


class ReadsWithin(Classifier):
    """Breaks its graph, to read a value, and once more after the break."""

    def forward(self, inputs, labels, mode="tensor"):  # noqa: ARG002 - as a model is called
        inputs.sum().item()
        scores = self.layers(inputs)
        scores.mean().item()
        return {"loss": torch.nn.functional.cross_entropy(scores, labels)}


def train(make_runner, counting, *hooks, **overrides):
    runner = make_runner(custom_hooks=[*hooks, counting], **{**NO_VALIDATION, **overrides})
    runner.train()
    return next(runner.log_dir.glob("*.log")).read_text()


@needs_counting
@pytest.mark.parametrize("fullgraph", [False, True], ids=["breaks", "fullgraph"])
@pytest.mark.parametrize("begin", [0, 1, 3])
def test_compiled_graphs_run_in_the_counted_steps_and_after_them(make_runner, begin, fullgraph):
    graphs, counting = Graphs(), HostSyncHook(begin=begin, iters=2)
    cfg = {"compile": {"backend": graphs, "fullgraph": fullgraph}}
    train(make_runner, counting, graphs, cfg=cfg)
    assert graphs.per_step == [1] * 12
    assert counting.steps == 2
    assert counting.counts == {}


@needs_counting
@pytest.mark.parametrize("begin", [0, 3])
def test_what_is_compiled_with_its_backward_stays_so(make_runner, begin):
    RunsUncompiled.runs = 0
    counting = HostSyncHook(begin=begin, iters=2)
    cfg = {"compile": {"backend": "aot_eager"}}
    train(make_runner, counting, model={"type": RunsUncompiled}, cfg=cfg)
    assert RunsUncompiled.runs == 0
    assert counting.steps == 2
    assert counting.counts == {}  # nothing of what compiles is taken for the run's own


@needs_counting
@pytest.mark.filterwarnings("ignore:Graph break")
def test_lines_of_compiled_code_are_told_with_the_names_in_the_file(make_runner):
    counting = HostSyncHook(begin=3, iters=2)
    cfg = {"compile": {"backend": "eager"}}
    train(make_runner, counting, model={"type": ReadsWithin}, cfg=cfg)
    found = sorted(sync.origin.rpartition("/")[2] for sync in counting.counts)
    first = ReadsWithin.forward.__code__.co_firstlineno
    name = "test_host_sync_compiled.py"
    assert found == [f"{name}:{first + line} in forward" for line in (1, 3)]
    assert set(counting.counts.values()) == {2}


def test_names_of_copied_code_are_those_in_the_file_on_python_3_10_too():
    from mm_runner.hooks.host_sync._origin import _name  # noqa: PLC0415 - private

    class Code:
        def __init__(self, co_name):
            self.co_name = co_name

    assert _name(Code("forward_14_15")) == "forward"
    assert _name(Code("torch_dynamo_resume_in_forward_14_15_at_30")) == "forward"
    assert _name(Code("forward")) == "forward"
    assert _name((lambda: None).__code__) == "<lambda>"


def test_where_torch_would_not_leave_it_compiled_nothing_is_counted(make_runner, monkeypatch):
    # As with an older torch: that is all by which it is told.
    monkeypatch.setattr("mm_runner.hooks.host_sync._hook.leaves_compiled_code_alone", lambda: False)
    graphs, counting = Graphs(), HostSyncHook(begin=1, iters=2)
    log = train(make_runner, counting, graphs, cfg={"compile": {"backend": graphs}})
    assert graphs.per_step == [1] * 12
    assert counting.steps == 0
    assert log.count("HostSyncHook counts nothing: torch") == 1
    counting = HostSyncHook(begin=1, iters=2)
    assert "counts nothing" not in train(make_runner, counting)
    assert counting.steps == 2
