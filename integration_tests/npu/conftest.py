"""Our portable optimizers beside torch_npu's own; nox names the wheel in TORCH_NPU_WHEEL."""

import os
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2] / "packages" / "mm-npu" / "tests"
# The formulas, options and gradients are those of mm-npu's own tests.
sys.path[:0] = [str(TESTS), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def originals(tmp_path_factory):
    from original import open_originals  # noqa: PLC0415 - found by the path above

    if "TORCH_NPU_WHEEL" not in os.environ:
        pytest.fail("TORCH_NPU_WHEEL must name a wheel of torch_npu; nox -s npu sets it")
    with open_originals(os.environ["TORCH_NPU_WHEEL"], tmp_path_factory.mktemp("wheel")) as classes:
        yield classes
