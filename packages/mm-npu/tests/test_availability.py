import os

import pytest
import torch

from mm_npu import is_npu_available, npu_unavailable_reason

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_without_torch_npu_the_reason_says_what_to_install():
    release = ".".join(torch.__version__.split(".")[:2])
    assert not is_npu_available()
    assert npu_unavailable_reason() == (
        f"torch_npu is not installed; install the release made for torch {release}."
    )


def test_with_a_device_there_is_no_reason(put_torch_npu):
    put_torch_npu()
    assert is_npu_available()
    assert npu_unavailable_reason() is None


def test_without_a_device_the_reason_names_the_driver(put_torch_npu):
    put_torch_npu(available=False)
    assert not is_npu_available()
    assert npu_unavailable_reason().startswith("torch_npu 9.8.7 finds no NPU; check the driver")


@pytest.mark.parametrize(
    "error",
    [
        "ImportError('libhccl.so: cannot open shared object file')",
        "OSError('libhccl.so: cannot open shared object file')",
        "RuntimeError('libhccl.so:\\ncannot open shared object file.')",
    ],
)
def test_a_torch_npu_that_does_not_import_gives_one_sentence(put_torch_npu, monkeypatch, error):
    monkeypatch.delenv(AUTOLOAD, raising=False)
    put_torch_npu(f"import os\nos.environ[{AUTOLOAD!r}] = '0'\nraise {error}")
    reason = npu_unavailable_reason()
    kind = error.split("(")[0]
    assert f"({kind}: libhccl.so: cannot open shared object file); install CANN" in reason
    assert f"{AUTOLOAD}=0" in reason
    assert "\n" not in reason
    assert not is_npu_available()
    assert AUTOLOAD not in os.environ


def test_a_torch_npu_that_loaded_by_half_gives_one_sentence(put_torch_npu, monkeypatch):
    monkeypatch.setenv(AUTOLOAD, "1")
    put_torch_npu("")  # no torch_npu.npu
    assert "does not work (AttributeError" in npu_unavailable_reason()
    assert os.environ[AUTOLOAD] == "1"


def test_torch_npu_is_asked_once(put_torch_npu):
    put_torch_npu("raise ImportError('first')")
    first = npu_unavailable_reason()
    assert npu_unavailable_reason() is first
