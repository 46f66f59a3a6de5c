import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from toy import Toy, needs_compile

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
