"""What a plan says that optimizers keep, and that it needs no compiler for it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from mm_runner.plan._model import bytes_by_dtype
from mm_runner.plan._optimizer_state import tensors_kept
from mm_runner.registry import OPTIMIZERS

# One of each kind: numbers, sizes of one, equal sizes, sizes below and above those of a stand-in.
_SHAPES = [(), (1,), (5, 2), (2, 5), (1, 8), (2, 2, 3), (4, 3, 3, 3), (1, 2, 1, 2, 9, 2)]


class Odd(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.parts = nn.ParameterList(torch.ones(shape, device=device) for shape in _SHAPES)


def bytes_really_kept(kind, options):
    optimizer = kind(Odd("cpu").parameters(), **options)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = [one for state in optimizer.state.values() for one in state.values()]
    return bytes_by_dtype(one for one in kept if isinstance(one, torch.Tensor))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}),
        ("SGD", {"momentum": 0.9}),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {}),
        ("Adafactor", {}),
        ("Adagrad", {}),
        ("Adadelta", {}),
        ("Adamax", {}),
        ("ASGD", {}),
        ("NAdam", {}),
        ("RAdam", {}),
        ("RMSprop", {"centered": True, "momentum": 0.5}),
        ("Rprop", {}),
        pytest.param("NpuFusedAdamW", {}, marks=pytest.mark.filterwarnings("ignore::UserWarning")),
        pytest.param("NpuFusedLamb", {}, marks=pytest.mark.filterwarnings("ignore::UserWarning")),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_is_planned_is_what_is_kept(name, options):
    if name not in OPTIMIZERS.names():
        pytest.skip(f"this torch has no {name}")
    kind = OPTIMIZERS.get(name)
    options = {"lr": 0.1, **options}
    planned = kind(Odd("meta").parameters(), **options)
    parameters = [list(group["params"]) for group in planned.param_groups]
    assert bytes_by_dtype(tensors_kept(planned)) == bytes_really_kept(kind, options)
    # It is over its own parameters again, and has a state of no others.
    after = [group["params"] for group in planned.param_groups]
    assert [list(map(id, group)) for group in after] == [list(map(id, one)) for one in parameters]
    assert {id(one) for one in planned.state} <= {id(one) for group in parameters for one in group}


class OwnKind(torch.optim.Optimizer):
    """Not torch's: nobody knows whether it treats all sizes alike."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.numel() > 100:
                    self.state[parameter]["half"] = torch.zeros(
                        parameter.numel() // 2, device=parameter.device
                    )


def test_an_optimizer_of_the_users_own_sees_the_true_sizes():
    optimizer = OwnKind(Odd("meta").parameters())
    assert bytes_by_dtype(tensors_kept(optimizer)) == {"float32": 4 * 54}


_NEEDS_NO_COMPILER = """
import sys
import torch

known = set(sys.modules)
from mm_runner.cli import main

assert main(["check", sys.argv[1]]) == 0
heavy = ("torch._dynamo", "torch._inductor", "sympy")
print([name for name in heavy if name in sys.modules and name not in known], file=sys.stderr)
left = [one for one in vars(torch.optim.Optimizer).values()
        if hasattr(getattr(one, "__wrapped__", None), "__dynamo_disable")]
print(left, file=sys.stderr)
"""

_CONFIG = """
model: {type: "toy:Classifier"}
work_dir: work
train_dataloader: {dataset: {type: "toy:Blobs"}, batch_size: 4}
train_cfg: {by_epoch: true, max_epochs: 4}
optim_wrapper: {optimizer: {type: AdamW, lr: 0.1}}
param_scheduler: [{type: LinearLR, by_epoch: false, end: 3}, {type: CosineAnnealingLR}]
"""


@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 7),
    reason="torch before 2.7 imports a part of it itself",
)
@pytest.mark.skipif(
    "disable_fn" not in torch._disable_dynamo(lambda: None).__code__.co_varnames
    if hasattr(torch, "_disable_dynamo")
    else True,
    reason="this torch asks its compiler at each call",
)
def test_a_check_imports_no_compiler(write, tmp_path):
    write("c.yaml", _CONFIG)
    write("script.py", _NEEDS_NO_COMPILER)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "c.yaml")],
        env={"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr.splitlines() == ["[]", "[]"]
