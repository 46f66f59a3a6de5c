import copy
import logging

import pytest
import torch
from blocks import Block, Stack
from torch import nn
from torch.utils.checkpoint import checkpoint
from toy import CountingBackend, needs_compile, needs_torch_2_4

from mm_compile import CompileError, ConfigError, NumericsError, compile_model
from mm_compile._torch import torch_version

pytestmark = [needs_compile, needs_torch_2_4]


class WrongBackend(CountingBackend):
    """Adds ``error`` to what a graph computes, if ``is_meant(inputs)``."""

    def __init__(self, error, is_meant=lambda _inputs: True):
        super().__init__()
        self._error = error
        self._is_meant = is_meant

    def __call__(self, graph_module, example_inputs):
        run = super().__call__(graph_module, example_inputs)
        inputs = [*example_inputs, *graph_module.parameters()]
        if not self._is_meant(inputs):
            return run
        return lambda *args: tuple(
            each + self._error if isinstance(each, torch.Tensor) else each for each in run(*args)
        )


class _DoubleGradient(torch.autograd.Function):
    @staticmethod
    def forward(_context, outputs):
        return outputs.clone()

    @staticmethod
    def backward(_context, gradient):
        return 2 * gradient


class WrongGradients(CountingBackend):
    """Computes the right outputs, with gradients twice as large."""

    def __call__(self, graph_module, example_inputs):
        run = super().__call__(graph_module, example_inputs)
        return lambda *args: tuple(_DoubleGradient.apply(each) for each in run(*args))


class Everything(nn.Module):
    """Random numbers, buffers, a counter, a change of its input in place, and a shared use."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Part() for _ in range(2))
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, inputs):
        outputs = self.first(inputs)
        for block in (*self.blocks, self.blocks[0]):
            outputs = block(outputs)
        return self.last(outputs)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)

    def forward(self, inputs):
        inputs.mul_(2)
        return self.drop(torch.relu(self.norm(self.linear(inputs))))


class Checkpointed(Everything):
    def __init__(self, *, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, inputs):
        outputs = self.first(inputs)
        for block in self.blocks:
            # A clone: what is computed again must not be changed in place.
            outputs = checkpoint(
                lambda given, block=block: block(given.clone()),
                outputs,
                use_reentrant=self.use_reentrant,
            )
        return self.last(outputs)


def train(model, steps=4, accumulate=2, *, autocast=False):
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        inputs = torch.randn(6, 4)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(inputs).float().square().mean()
        loss.backward()
        losses.append(loss.detach())
        if step % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return losses, copy.deepcopy(model.state_dict()), torch.get_rng_state()


MODELS = {
    "plain": Everything,
    "checkpointed": lambda: Checkpointed(use_reentrant=False),
    "checkpointed-reentrant": lambda: Checkpointed(use_reentrant=True),
}


# torch 2.4's own checkpointing uses a name that it deprecates.
@pytest.mark.filterwarnings("ignore:.torch.cpu.amp.autocast:FutureWarning")
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", MODELS)
def test_training_is_bit_equal_with_and_without(name, autocast):
    if name == "checkpointed" and torch_version() < (2, 6):
        pytest.skip("this torch compiles nothing under such a checkpoint")
    results, graphs, handles = [], [], []
    for verify in (0, 3):
        torch.manual_seed(0)
        model, backend = MODELS[name](), CountingBackend()
        cfg = {"backend": backend, "regions": "auto", "verify": verify}
        handles.append(compile_model(model, cfg))
        results.append(train(model, autocast=autocast))
        graphs.append(backend.graphs)
        torch._dynamo.reset()
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
    assert graphs[1] == graphs[0]
    assert [region.recompiles for region in handles[1].regions] == [
        region.recompiles for region in handles[0].regions
    ]
    for region in handles[1].regions:
        assert region.verified.num_calls == 3, region.verified
        assert region.verified.deviation <= region.verified.allowed
        assert region.verified.note is None


def has_size(size):
    return lambda inputs: any(size in each.shape for each in inputs if hasattr(each, "shape"))


def four_blocks():
    return nn.Sequential(*(Block(4, 4, hidden=hidden) for hidden in (4, 17, 4, 4)))


def test_a_wrong_region_raises_by_its_name():
    model = four_blocks()
    compile_model(
        model, {"backend": WrongBackend(0.5, has_size(17)), "regions": ["*"], "verify": 1}
    )
    with pytest.raises(NumericsError, match=r'1 \(Block\).*on_error="eager"') as caught:
        model(torch.randn(5, 4))
    assert isinstance(caught.value, CompileError)
    assert "the output deviates by 0.5" in str(caught.value)


def test_a_wrong_region_runs_eagerly_from_that_very_call_on(caplog):
    torch.manual_seed(0)
    model = four_blocks()
    eager = copy.deepcopy(model)
    handle = compile_model(
        model,
        {
            "backend": WrongBackend(0.5, has_size(17)),
            "regions": ["*"],
            "verify": 1,
            "on_error": "eager",
        },
    )
    with caplog.at_level(logging.WARNING, "mm_compile"):
        torch.testing.assert_close(train(model)[:2], train(eager)[:2])
    assert [region.is_compiled for region in handle.regions] == [True, False, True, True]
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mm_")]
    assert line.startswith("compile: 1 (Block) runs eagerly from now on: verify: the output dev")
    assert "verified: 4 regions" in str(handle.report())


def test_wrong_gradients_are_found_and_named(model):
    model.drop.p = 0.0
    compile_model(model, {"backend": WrongGradients(), "verify": 1})
    with pytest.raises(NumericsError, match=r"the gradient of '(first|last)\.(weight|bias)'"):
        model(torch.randn(5, 4))


@pytest.mark.parametrize(
    ("verify", "is_fine"),
    [({"atol": 1e-2}, True), ({"rtol": 0.1}, True), ({"rtol": 0, "atol": 0}, False), (1, False)],
)
def test_tolerances_decide(verify, is_fine):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    compile_model(model, {"backend": WrongBackend(5e-3), "verify": verify})
    if is_fine:
        model(torch.randn(50, 4))
    else:
        with pytest.raises(NumericsError):
            model(torch.randn(50, 4))


class OwnNumbers(CountingBackend):
    """Draws random numbers of its own."""

    def __call__(self, graph_module, example_inputs):
        run = super().__call__(graph_module, example_inputs)

        def draw(*args):
            torch.rand(3)
            return run(*args)

        return draw


def test_other_random_numbers_are_no_deviation_and_are_said(model, caplog):
    handle = compile_model(model, {"backend": OwnNumbers(), "verify": 2})
    model(torch.randn(5, 4))
    assert "other random numbers" in handle.regions[0].verified.note
    assert "cannot be verified" in caplog.text
    assert "not verified: the model (Toy)" in str(handle.report())


def test_hooks_around_a_region_and_its_parameters_know_nothing(backend):
    model = Stack(2)
    seen = []
    model.blocks[0].register_forward_hook(lambda *_: seen.append("forward"))
    compile_model(model, {"backend": backend, "regions": "auto", "verify": 1})
    model(torch.randn(5, 4))
    assert seen == ["forward"]
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        ({"step": 2}, "no key 'step'. Did you mean 'steps'"),
        (-1, "verify.steps is -1"),
        ({"rtol": "big"}, "verify.rtol is 'big'; it takes a tolerance"),
        ({"atol": float("nan")}, "verify.atol is nan; it takes a tolerance"),
    ],
)
def test_a_wrong_verify_is_refused(model, verify, message):
    with pytest.raises(ConfigError, match=message):
        compile_model(model, {"backend": "eager", "verify": verify})


@pytest.mark.parametrize("verify", [1, True, {}, {"rtol": 0.1}])
def test_what_steps_an_optimizer_cannot_be_verified(model, verify):
    with pytest.raises(ConfigError, match="which only 'forward', 'loss', 'predict' may"):
        compile_model(model, {"backend": "eager", "verify": verify, "target": "train_step"})


def test_replaced_buffers_are_put_back(backend):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, inputs):
            self.mean = self.mean + inputs.mean(0)
            return self.linear(inputs)

    model = Counting()
    compile_model(model, {"backend": backend, "verify": 1, "dynamic": False})
    inputs = torch.ones(2, 4)
    model(inputs)
    assert model.mean.tolist() == [1.0] * 4
