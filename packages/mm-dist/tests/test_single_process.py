import doctest
import importlib
import pkgutil

import pytest
import torch

import mm_dist
from mm_dist import ArgumentTypeError, ConfigError


def test_info_functions_describe_one_process():
    assert mm_dist.get_dist_info() == (0, 1)
    assert (mm_dist.get_rank(), mm_dist.get_world_size()) == (0, 1)
    assert (mm_dist.get_local_rank(), mm_dist.get_local_size()) == (0, 1)
    assert mm_dist.get_backend() is None
    assert not mm_dist.is_distributed()
    assert mm_dist.is_main_process()
    assert mm_dist.master_only(lambda value: value)(3) == 3
    mm_dist.barrier()


def test_infer_launcher_reads_the_environment(monkeypatch):
    assert mm_dist.infer_launcher() == "none"
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    assert mm_dist.infer_launcher() == "mpi"


def test_collectives_change_nothing_in_one_process():
    data = torch.arange(3.0)
    mm_dist.all_reduce(data, "mean")
    mm_dist.all_reduce_dict({"a": data}, "sum")
    mm_dist.broadcast(data)
    assert data.tolist() == [0, 1, 2]
    assert mm_dist.all_gather(data) == [data]
    assert mm_dist.gather(data) == [data]
    assert mm_dist.all_gather_object("x") == ["x"]
    assert mm_dist.gather_object("x") == ["x"]
    objects = ["x", 1]
    mm_dist.broadcast_object_list(objects)
    assert objects == ["x", 1]
    assert mm_dist.collect_results([1, 2, 1], 2) == [1, 2]
    assert 0 <= mm_dist.sync_random_seed() < 2**31


def test_collectives_refuse_wrong_arguments():
    with pytest.raises(ConfigError, match=r"op='average' is not known; .*mean"):
        mm_dist.all_reduce(torch.ones(1), "average")
    with pytest.raises(ConfigError, match=r"'mean' has no meaning for torch\.bool"):
        mm_dist.all_reduce(torch.ones(1, dtype=torch.bool), "mean")
    with pytest.raises(ArgumentTypeError, match="takes a dict"):
        mm_dist.all_reduce_dict([torch.ones(1)])
    with pytest.raises(ArgumentTypeError, match="takes a list"):
        mm_dist.broadcast_object_list(("x",))
    with pytest.raises(ArgumentTypeError, match="takes a list"):
        mm_dist.collect_results((1,), 1)
    with pytest.raises(ConfigError, match=r"asked for 3 results, .* together have 2"):
        mm_dist.collect_results([1, 2], 3)


WRONG_ARGUMENTS = {
    "op": (lambda: mm_dist.all_reduce(torch.ones(1), ["sum"]), r"op=\['sum'\] is not known; .*sum"),
    "op of a dict": (
        lambda: mm_dist.all_reduce_dict({"a": torch.ones(1)}, {}),
        r"op=\{\} is not known; .*sum",
    ),
    "local_rank": (lambda: mm_dist.local_device(-1, "cuda"), "local_rank=-1 is negative"),
    "text": (lambda: mm_dist.local_device("0"), "local_rank='0' is no whole number; pass int"),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
@pytest.mark.parametrize("has_group", [False, True], ids=["alone", "group"])
def test_wrong_arguments_are_explained(case, has_group, request):
    if has_group:
        request.getfixturevalue("group_of_one")
    call, message = WRONG_ARGUMENTS[case]
    with pytest.raises((ArgumentTypeError, ConfigError), match=message):
        call()


def test_public_names_are_curated():
    assert all(hasattr(mm_dist, name) for name in mm_dist.__all__)
    for name in ("ConfigError", "LaunchError", "TorchVersionError", "ArgumentTypeError"):
        assert issubclass(getattr(mm_dist, name), mm_dist.MMDistError)
    assert issubclass(mm_dist.ConfigError, ValueError)
    assert issubclass(mm_dist.ArgumentTypeError, TypeError)


_NEED_GROUP = ("mm_dist._wrappers.ddp", "mm_dist._wrappers.separate_ddp")


def _module_names():
    return [m.name for m in pkgutil.walk_packages(mm_dist.__path__, "mm_dist.")]


@pytest.mark.parametrize("name", _module_names())
@pytest.mark.usefixtures("group_of_one_if_wrapper")
def test_examples_in_docstrings_run(name):
    if mm_dist.available_device_type() != "cpu":
        pytest.skip("the examples show a machine without accelerator")
    if name == "mm_dist._wrappers._sharded_state":  # imported where a model is sharded
        pytest.importorskip("torch.distributed.tensor.placement_types", reason="older torch")
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"torch": torch, **vars(mm_dist)})
    assert result.failed == 0


@pytest.fixture
def group_of_one_if_wrapper(request):
    if request.node.callspec.params["name"] in _NEED_GROUP:
        request.getfixturevalue("group_of_one")
