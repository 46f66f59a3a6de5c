import warnings
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from mm_dist import ConfigError, TorchVersionError
from mm_dist import _backends as backends
from mm_dist._backends import backends_by_device_type, choose_backend, communication_device

HAS_PAIRS = hasattr(dist.distributed_c10d, "BackendConfig")
needs_pairs = pytest.mark.skipif(not HAS_PAIRS, reason="torch has pairs since 2.0")


@pytest.mark.parametrize(
    ("device_type", "backend"),
    [("cpu", "gloo"), ("cuda", "nccl"), ("npu", "hccl"), ("mlu", "cncl"), ("musa", "mccl")],
)
def test_choose_backend_follows_the_device(device_type, backend):
    assert choose_backend(None, device_type) == backend


@pytest.mark.parametrize(
    "backend",
    ["nccl", "NCCL", "hccl", pytest.param("cpu:gloo,cuda:nccl", marks=needs_pairs)],
)
def test_choose_backend_falls_to_the_devices_own_with_one_warning(backend):
    with pytest.warns(UserWarning, match=r"cannot run on device 'cpu' here; using 'gloo'") as seen:
        assert choose_backend(backend, "cpu") == "gloo"
    assert len(seen) == 1


def test_choose_backend_is_silent_when_it_can_be_met_or_is_told_to():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_backend("gloo", "cpu") == "gloo"
        assert choose_backend("gloo", "cuda") == "gloo"
        assert choose_backend("nccl", "cpu", is_warning=False) == "gloo"


@needs_pairs
def test_choose_backend_keeps_pairs_that_the_machine_can_run(monkeypatch):
    monkeypatch.setattr(backends, "_is_installed", lambda _: True)  # a stand-in for a CUDA build
    assert choose_backend("cpu:gloo,cuda:nccl", "cuda") == "cpu:gloo,cuda:nccl"
    assert choose_backend("cpu:gloo", "cpu") == "cpu:gloo"


@needs_pairs
@pytest.mark.parametrize("backend", ["cpu:gloo,nccl", "cpu:", ":gloo"])
def test_choose_backend_explains_pairs(backend):
    with pytest.raises(ConfigError, match="pairs look like 'cpu:gloo,cuda:nccl'"):
        choose_backend(backend, "cpu")


def test_choose_backend_names_the_torch_that_pairs_need(monkeypatch):
    monkeypatch.delattr(dist.distributed_c10d, "BackendConfig", raising=False)
    with pytest.raises(TorchVersionError, match=r"since 2\.0"):
        choose_backend("cpu:gloo,cuda:nccl", "cpu")


def test_choose_backend_refuses_an_unknown_name():
    with pytest.raises(ConfigError, match=r"backend='ncll' is not known.*Did you mean 'nccl'"):
        choose_backend("ncll", "cpu")
    with pytest.raises(ConfigError, match=r"backend=3 is not a name"):
        choose_backend(3, "cpu")


@pytest.mark.usefixtures("group_of_one")
def test_backends_of_a_gloo_group_serve_the_cpu():
    assert backends_by_device_type()["cpu"] == "gloo"
    assert communication_device() == torch.device("cpu")
    assert communication_device(torch.device("cuda", 1)) == torch.device("cpu")


@pytest.mark.parametrize(
    ("config", "data_device", "expected"),
    [
        ({"cuda": "nccl"}, "cpu", "cuda:1"),
        ({"cpu": "nccl", "cuda": "nccl"}, "cpu", "cuda:1"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cpu", "cpu"),
        ({"cpu": "gloo", "cuda": "nccl"}, "cuda:1", "cuda:1"),
    ],
    ids=["nccl", "nccl-of-torch-2.0", "pairs-cpu", "pairs-cuda"],
)
def test_communication_device_with_a_stand_in_group(monkeypatch, config, data_device, expected):
    monkeypatch.setattr(backends, "backends_by_device_type", lambda _: config)
    monkeypatch.setattr(backends, "current_device", lambda name: torch.device(name, 1))
    assert communication_device(torch.device(data_device)) == torch.device(expected)


@pytest.mark.parametrize(
    ("served", "device_type", "by_old_torch"),
    [
        ({"cpu": "gloo"}, None, None),
        ({"cpu": "gloo", "cuda": "nccl"}, "cuda", "cuda"),
        ({"cpu": "gloo", "npu": "hccl"}, None, None),
        ({"npu": "hccl"}, "npu", None),
    ],
)
def test_a_barrier_is_given_the_device_that_its_backend_would_guess(
    monkeypatch, served, device_type, by_old_torch
):
    monkeypatch.setattr(dist.distributed_c10d, "BarrierOptions", SimpleNamespace(device=None))
    assert backends.barrier_device_type(served) == device_type
    monkeypatch.setattr(dist.distributed_c10d, "BarrierOptions", SimpleNamespace())
    assert backends.barrier_device_type(served) == by_old_torch
