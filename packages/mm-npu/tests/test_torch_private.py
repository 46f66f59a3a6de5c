"""Every private name of torch may be missing: mm-npu then does what its table of them says."""

import re
import subprocess
import sys

import pytest
import torch

from mm_npu import _torch_private

REMOVE = {
    "torch._foreach_copy_": "vars(torch).pop('_foreach_copy_', None)",
    "Tensor._is_view": "torch.Tensor._is_view = property(raise_attribute_error)",
}
TRAIN = """
for name in filter(lambda name: name.startswith("NpuFused"), mm_npu.__all__):
    params = [torch.nn.Parameter(torch.ones(3, 2)) for _ in range(3)]
    optimizer = getattr(mm_npu, name)(params, lr=0.1)
    for p in params:
        p.grad = torch.full_like(p, 2.0)
    optimizer.step()
    optimizer.step()
    assert not any(torch.equal(p, torch.ones(3, 2)) for p in params), name
"""
PROGRAM = f"""
import warnings
import torch
def raise_attribute_error(self):
    raise AttributeError("it has been removed")
REMOVE
import mm_npu
warnings.simplefilter("ignore", mm_npu.PortableOptimizerWarning)
from mm_npu._torch_private import is_view
assert is_view(torch.ones(2)[:1]) is hasattr(torch.Tensor, "_is_view")
{TRAIN}
"""


@pytest.mark.parametrize("name", sorted(REMOVE))
def test_without_a_private_name_all_nine_train(name):
    program = PROGRAM.replace("REMOVE", REMOVE[name])
    if name == "Tensor._is_view":  # a class shows a property that its objects do not have
        program = program.replace('hasattr(torch.Tensor, "_is_view")', "False")
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_marks_of_the_first_fsdp_a_parameter_is_plain():
    assert not _torch_private.is_flattened(torch.nn.Parameter(torch.ones(2)))


def test_the_table_names_what_is_tested():
    table = re.findall(r"``([\w.]*)``", _torch_private.__doc__ or "")
    assert {*REMOVE, "_fsdp_flattened", "_is_flat_param"} == set(table)
