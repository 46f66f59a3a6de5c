import sys

import pytest
import torch
from test_portable import BLOCKWISE, give_gradients, make, make_params, train

from mm_npu import TorchVersionError

pytestmark = pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")

CAN_COMPILE = hasattr(torch, "compile") and not (
    torch.__version__.startswith("2.0.") and sys.version_info >= (3, 11)
)


@pytest.mark.skipif(CAN_COMPILE, reason="this torch compiles")
@pytest.mark.parametrize("name", BLOCKWISE)
def test_without_a_compiler_it_is_refused_when_built(name):
    with pytest.raises(TorchVersionError, match=r"compiled=True was asked for.*leave compiled out"):
        make(name, make_params(), compiled=True)


@pytest.mark.skipif(not CAN_COMPILE, reason="this torch does not compile")
@pytest.mark.parametrize("name", ["NpuFusedRMSprop", "NpuFusedAdamP"])
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of Python, of modules, of itself
def test_the_compiled_step_is_the_eager_one(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    # Of five alike, four are updated by one call; not while one is a step behind.
    shapes = [(4, 3), (3,), (4, 3), (), *[(100, 90)] * 5, (120, 100), (3, 5)]
    params, reference = make_params(shapes), make_params(shapes)
    optimizer, eager = make(name, params, compiled=True), make(name, reference)
    for step in range(1, 6):
        for each in (optimizer, eager):  # a schedule compiles nothing anew
            each.param_groups[0]["lr"] = 0.01 / step
        for each, its in ((optimizer, params), (eager, reference)):
            give_gradients(its, step)
            its[4].grad = None if step < 3 else its[4].grad
            each.step()
    torch.testing.assert_close(params, reference, rtol=1e-5, atol=1e-6)
    # Autograd notices that the parameters were changed, as by the eager step.
    product = params[4] * params[4]
    train(optimizer, params, [6])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
