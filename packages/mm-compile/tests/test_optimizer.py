import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from toy import Toy, needs_compile, needs_torch_2_4

from mm_compile import AlreadyCompiledError, CompileError, compile_model

pytestmark = needs_compile

MAKERS = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "Adam, foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=True),
}


def train(model, optimizer, steps=5):
    generator = torch.Generator().manual_seed(0)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=5)
    rates = []
    for _ in range(steps):
        model(torch.randn(5, 4, generator=generator)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


@needs_torch_2_4
@pytest.mark.parametrize("name", MAKERS)
def test_a_compiled_step_updates_as_the_eager_one(model, backend, name):
    model.drop.p = 0.0
    eager = copy.deepcopy(model)
    optimizer, eager_optimizer = MAKERS[name](model.parameters()), MAKERS[name](eager.parameters())
    handle = compile_model(model, {"backend": backend, "optimizer": True})
    handle.compile_optimizer(optimizer)
    rates = train(model, optimizer)
    assert rates == train(eager, eager_optimizer)
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert all(isinstance(rate, float) for rate in rates)
    # The model once; the step once without state and once with it, not once for each rate.
    assert backend.graphs <= 3
    assert backend.calls == 10
    torch.testing.assert_close(optimizer.state_dict(), eager_optimizer.state_dict())
    with pytest.raises(AlreadyCompiledError):
        handle.compile_optimizer(optimizer)
    pickle.loads(pickle.dumps(optimizer))  # noqa: S301 - our own bytes
    handle.undo()
    train(model, optimizer, 1)
    assert backend.calls == 10


def test_without_the_opt_in_the_step_is_left_alone(model, backend):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = dict(vars(optimizer))
    compile_model(model, {"backend": backend}).compile_optimizer(optimizer)
    compile_model(Toy(), cfg=False).compile_optimizer(optimizer)
    assert vars(optimizer) == before


def refuse(_graph_module, _inputs):
    raise NotImplementedError("no kernel for this")


@needs_torch_2_4
def test_a_step_that_does_not_compile_follows_on_error():
    def made(on_error):
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = compile_model(
            nn.Linear(1, 1), {"backend": refuse, "optimizer": True, "on_error": on_error}
        )
        handle.compile_optimizer(optimizer)
        return model, optimizer

    with pytest.raises(CompileError, match=r"step of SGD did not compile.*no kernel.*on_error="):
        train(*made("raise"))
    model, optimizer = made("eager")
    train(model, optimizer)
    torch.manual_seed(0)
    reference = nn.Linear(4, 1)
    train(reference, torch.optim.SGD(reference.parameters(), lr=0.1))
    torch.testing.assert_close(model.state_dict(), reference.state_dict())


@needs_torch_2_4
def test_a_lack_of_memory_is_raised_and_the_next_step_compiles():
    errors = [MemoryError("host")]

    def backend(graph_module, _inputs):
        if errors:
            raise errors.pop()
        return graph_module.forward

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cfg = {"backend": backend, "optimizer": True, "on_error": "eager"}
    handle = compile_model(nn.Linear(1, 1), cfg)
    handle.compile_optimizer(optimizer)
    with pytest.raises(MemoryError, match="host"):
        train(model, optimizer, 1)
    train(model, optimizer, 1)
    assert handle.report().optimizers[0].is_compiled


@needs_torch_2_4
def test_the_report_tells_of_the_step_and_of_its_own_graph_breaks(model, backend):
    handle = compile_model(model, {"backend": backend, "optimizer": True})
    optimizer = torch.optim.AdamW(model.parameters())
    handle.compile_optimizer(optimizer)
    train(model, optimizer, 3)
    report = handle.report()
    (step,) = report.optimizers
    assert (step.is_compiled, step.graphs) == (True, backend.graphs - 1)
    text = str(report)
    assert "compiled: the step of AdamW" in text
    assert "does not tell where" not in text
    # They are torch's own, and none of the model's.
    assert report.regions[0].graph_breaks == ()
    assert bool(step.graph_breaks) is bool(report.graph_breaks)
    for each in step.graph_breaks:
        assert f"graph break in the step of AdamW at {Path(torch.__file__).parent}" in text
        assert each.frame.startswith(str(Path(torch.optim.__file__).parent))
    assert report.optimizers[0].label == "the step of AdamW"
    handle.undo()
    assert not handle.report().optimizers[0].is_compiled
