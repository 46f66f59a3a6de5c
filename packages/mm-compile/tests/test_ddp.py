import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy import Toy, needs_compile
from wrapped import Watch

from mm_compile import compile_model

pytestmark = needs_compile


@pytest.fixture
def _one_rank(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    # gloo's thread still releases objects; torch 2.6 deadlocks if the group ends meanwhile.
    time.sleep(0.05)
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
def test_a_wrapped_model_trains_and_validates_compiled(model, backend):
    model.drop.p = 0.0
    eager = Toy()
    eager.load_state_dict(model.state_dict())
    eager.drop.p = 0.0
    wrapped = DistributedDataParallel(model)
    handle = compile_model(wrapped, {"backend": backend})
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    eager_optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        inputs = torch.randn(5, 4)
        eager.train_step(inputs, eager_optimizer)
        wrapped(inputs, mode="loss")["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(model.state_dict(), eager.state_dict())
    assert backend.calls >= 3
    calls = backend.calls
    with torch.no_grad():
        wrapped.module.val_step(torch.randn(5, 4))
    assert backend.calls > calls
    assert list(wrapped.state_dict()) == [f"module.{key}" for key in eager.state_dict()]
    handle.undo()
    calls = backend.calls
    wrapped(torch.randn(5, 4))
    assert backend.calls == calls


# More than 1 MiB of parameters: the size of torch's first gradient bucket.
SIZE = 520


class Layer(nn.Linear):
    def __init__(self):
        super().__init__(SIZE, SIZE, bias=False)

    def forward(self, inputs):
        return super().forward(inputs).relu()


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Layer(), Layer()) for _ in range(2))

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


def note_buckets(events, bucket):
    events.append("bucket")
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def backward(model):
    model(torch.randn(2, SIZE)).sum().backward()


@pytest.mark.usefixtures("_one_rank")
def test_gradients_are_exchanged_while_the_rest_of_a_whole_model_runs_backward():
    model, backend = Layers(), Watch()
    compile_model(model, {"backend": backend})
    wrapper = DistributedDataParallel(model, bucket_cap_mb=1)
    wrapper.register_comm_hook(backend.events, note_buckets)
    for _ in range(2):  # torch settles its buckets in the first
        backend.events.clear()
        backward(wrapper)
    assert backend.events == ["forward"] * 4 + ["backward", "bucket"] * 4
