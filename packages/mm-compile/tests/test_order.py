"""Compiled models among what else is put in or around a model, in one process."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from toy import needs_compile
from wrapped import Dropping, Net, Watch, train

from mm_compile import compile_model
from mm_compile._torch import shares_code, torch_version

pytestmark = needs_compile
by_regions = pytest.mark.parametrize("regions", [None, "auto"], ids=["whole", "regions"])
# Older ones let checkpointing see what dynamo traces, and miscount.
checkpoints_regions = pytest.mark.skipif(
    torch_version() < (2, 6), reason="this torch compiles no region that checkpointing calls"
)


def expect_same_training(make, cfg, **steps):
    """Train the model compiled and uncompiled, and return the compiled one's backend and handle."""
    eager, model, backend = make(), make(), Watch()
    handle = compile_model(model, {"backend": backend, **cfg})
    expected = train(eager, **steps)
    torch.testing.assert_close(train(model, **steps), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    return backend, handle


class CheckpointedInside(Dropping):
    def forward(self, inputs):
        return checkpoint(self.inner, inputs, use_reentrant=False)


class CheckpointedAround(Net):
    use_reentrant = False

    def call(self, block, inputs):
        return checkpoint(block, inputs, use_reentrant=self.use_reentrant)


class ReentrantAround(CheckpointedAround):
    use_reentrant = True


def wrapped_before():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: PLC0415
        checkpoint_wrapper,
    )

    return Net(kind=lambda size: checkpoint_wrapper(Dropping(size)))


@checkpoints_regions
@pytest.mark.parametrize(
    ("make", "regions"),
    [
        (partial(Net, CheckpointedInside), None),
        (partial(Net, CheckpointedInside), "auto"),
        (CheckpointedAround, "auto"),
        (ReentrantAround, "auto"),
        (wrapped_before, "auto"),
    ],
    ids=["whole", "inside", "around", "reentrant", "wrapper"],
)
def test_activation_checkpointing_gives_the_same_training(make, regions):
    backend, handle = expect_same_training(make, {"regions": regions})
    assert all(region.is_compiled for region in handle.regions)
    blocks = 1 if regions is None else 3
    assert backend.count("forward") >= 3 * blocks
    assert backend.count("backward") == 3 * blocks


@checkpoints_regions
def test_a_region_wrapped_after_compiling_is_checkpointed_around(backend):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (  # noqa: PLC0415
        checkpoint_wrapper,
    )

    model, eager = Net(), Net()
    compile_model(model, {"backend": backend, "regions": "auto"})
    for index, block in enumerate(model.blocks):
        model.blocks[index] = checkpoint_wrapper(block)
    torch.testing.assert_close(train(model), train(eager))
    assert list(model.state_dict()) == list(eager.state_dict())
    assert backend.calls == 3 * 3 * 2  # each block again in backward


@by_regions
def test_autocast_is_compiled_in_and_out_of_it(regions, backend):
    bfloat16 = partial(torch.autocast, "cpu", torch.bfloat16)
    model, eager = Net(), Net()
    compile_model(model, {"backend": backend, "regions": regions})
    # Graphs that are only captured run the very operations of eager code.
    assert train(model, context=bfloat16) == train(eager, context=bfloat16)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=0, atol=0)
    calls = backend.calls
    inputs = torch.randn(5, 4)
    for module in (model, eager):
        module.eval()
    assert model(inputs).dtype == torch.float32
    with bfloat16():
        outputs = model(inputs)
        assert outputs.dtype == torch.bfloat16
        torch.testing.assert_close(outputs, eager(inputs))
    torch.testing.assert_close(model(inputs), eager(inputs))
    assert backend.calls == calls + 3 * (1 if regions is None else 3)


@pytest.mark.skipif(not shares_code(), reason="dynamo does not look at hooks that come later")
@pytest.mark.parametrize("regions", [None, "auto"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_hooks_inside_of_a_region_are_called_from_when_they_are_there(backend, regions, when):
    model, seen = Net(), []

    def register():
        return model.blocks[1].first.register_forward_hook(lambda *_: seen.append(1))

    compile_model(model, {"backend": backend, "regions": regions})
    hook = register() if when == "before" else None
    model(torch.randn(5, 4))
    hook = hook or register()
    del seen[:]
    model(torch.randn(5, 4))
    assert seen == [1]
    hook.remove()
    model(torch.randn(5, 4))
    assert seen == [1]
