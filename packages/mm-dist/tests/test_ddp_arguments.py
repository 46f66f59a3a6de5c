"""The arguments of torch's wrapper, by the names of the installed torch, and our checks of them."""

import inspect

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mm_dist import (
    ArgumentTypeError,
    ConfigError,
    MMDistributedDataParallel,
    MMSeparateDistributedDataParallel,
)
from mm_dist._wrappers._ddp_checks import read_ddp_arguments

KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
INPUTS = torch.ones(2, 3)


class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def _new_group():
    return dist.new_group([0])


def _new_mesh():
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

    return init_device_mesh("cpu", (1,))


# Name, a way to make a value that is not the default, and what of the wrapper shows it.
ARGUMENTS = [
    ("dim", lambda: 1, lambda model: model.dim == 1),
    ("check_reduction", lambda: True, lambda _: True),  # torch ignores it
    ("process_group", _new_group, lambda model: model.process_group is not dist.group.WORLD),
    ("bucket_cap_mb", lambda: 3, lambda model: model.bucket_bytes_cap == 3 * 2**20),
    ("find_unused_parameters", lambda: True, lambda model: model.find_unused_parameters),
    ("gradient_as_bucket_view", lambda: True, lambda model: model.gradient_as_bucket_view),
    ("static_graph", lambda: True, lambda model: model.static_graph),
    ("device_mesh", _new_mesh, lambda model: model.device_mesh is not None),
    ("init_sync", lambda: False, lambda _: True),
    ("skip_all_reduce_unused_params", lambda: True, lambda m: m.skip_all_reduce_unused_params),
    ("bucket_cap_mb_list", lambda: [1, 2], lambda model: model.bucket_bytes_cap == 2 * 2**20),
    ("batched_grad_copy", lambda: True, lambda model: model.batched_grad_copy),
    ("lazy_bucket_allocation", lambda: True, lambda model: model.lazy_bucket_allocation),
]


@pytest.mark.parametrize(("name", "make", "shows"), ARGUMENTS, ids=[row[0] for row in ARGUMENTS])
@pytest.mark.filterwarnings("ignore:The `check_reduction` argument")
@pytest.mark.usefixtures("group_of_one")
def test_argument_of_torch_is_passed_on(name, make, shows):
    if name not in KNOWN:
        with pytest.raises(ArgumentTypeError, match=rf"no argument '{name}' with torch"):
            MMDistributedDataParallel(Net(), **{name: 1})
        return
    model, reference = MMDistributedDataParallel(Net(), **{name: make()}), Net()
    assert shows(model)
    for _ in range(2):
        model(INPUTS).sum().backward()
        reference(INPUTS).sum().backward()
    for parameter, other in zip(model.module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad)


@pytest.mark.usefixtures("group_of_one")
def test_delayed_parameters_are_not_reduced_by_torch():
    net = Net()
    delayed = [(name, parameter) for name, parameter in net.named_parameters() if name[0] == "0"]
    options = {"delay_all_reduce_named_params": delayed, "param_to_hook_all_reduce": delayed[0][1]}
    if "param_to_hook_all_reduce" not in KNOWN:
        pytest.skip("torch before 2.1")
    model = MMDistributedDataParallel(net, **options)
    for _ in range(2):
        model(INPUTS).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.usefixtures("group_of_one")
def test_unknown_argument_names_a_near_one():
    with pytest.raises(
        ArgumentTypeError,
        match=r"'find_unused_params' with .*mean 'find_unused_parameters'",
    ):
        MMDistributedDataParallel(Net(), find_unused_params=True)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("inner", [MMDistributedDataParallel, DistributedDataParallel])
def test_what_is_wrapped_already_is_refused(inner):
    name = inner.__name__
    wrapped = inner(Net())
    for outer in (MMDistributedDataParallel, MMSeparateDistributedDataParallel):
        with pytest.raises(ConfigError, match=f"^{name} is a model wrapper already; use it as"):
            outer(wrapped)


def test_device_ids_follow_the_module():
    cpu = read_ddp_arguments(Net(), {"device_ids": [1], "output_device": 1, "dim": 0})
    assert cpu == {"dim": 0}, "torch refuses them on the CPU"
    # 'meta' stands in for an accelerator: nothing is computed there.
    assert read_ddp_arguments(Net().to("meta"), {}) == {"device_ids": None}
    assert read_ddp_arguments(Net().to("meta"), {"device_ids": [3]}) == {"device_ids": [3]}
    two = nn.ModuleList([Net(), Net().to("meta")])  # torch's wrapper refuses or splits it itself
    assert read_ddp_arguments(two, {}) == {}
