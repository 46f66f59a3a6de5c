import os
import sys

import pytest
import torch
from conftest import RELEASE

from mm_npu import is_npu_available, npu_unavailable_reason

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_without_torch_npu_the_reason_says_what_to_install():
    assert not is_npu_available()
    assert npu_unavailable_reason() == (
        f"torch_npu is not installed; install the release made for torch {RELEASE}."
    )


def test_a_torch_npu_that_is_blocked_counts_as_not_installed(put_torch_npu, monkeypatch):
    put_torch_npu()
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert npu_unavailable_reason().startswith("torch_npu is not installed")


def test_with_a_device_there_is_no_reason_and_nothing_is_switched(put_torch_npu):
    put_torch_npu()
    assert is_npu_available()
    assert npu_unavailable_reason() is None
    assert sys.modules["torch_npu"].npu.CALLS == []


def test_without_a_device_the_reason_names_the_driver(put_torch_npu):
    put_torch_npu(available=False)
    assert not is_npu_available()
    assert npu_unavailable_reason().startswith(f"torch_npu {RELEASE}.7 finds no NPU; check the dri")


# What torch_npu 2.13 really raises: without CANN, with half of CANN, beside another accelerator;
# and what others have met.
@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("ImportError('libhccl.so: cannot open shared object file')", "ImportError: libhccl.so: "),
        ("OSError('libascendcl.so: cannot open')", "OSError: libascendcl.so: cannot open"),
        ("RuntimeError('Two accelerators\\ncannot be used.')", "RuntimeError: Two accelerators c"),
        ("Exception('ASCEND_OPP_PATH is not set.')", "Exception: ASCEND_OPP_PATH is not set)"),
        ("AttributeError('half a module')", "AttributeError: half a module"),
        ("SystemExit(3)", "SystemExit: 3"),
        ("KeyError()", "KeyError: no message"),
    ],
)
def test_a_torch_npu_that_does_not_import_gives_one_sentence(
    put_torch_npu, monkeypatch, capsys, error, told
):
    monkeypatch.delenv(AUTOLOAD, raising=False)
    put_torch_npu(
        f"import os\nos.environ[{AUTOLOAD!r}] = '0'\nprint('Warning of CANN')\n"
        f"from . import npu\nraise {error}"
    )
    reason = npu_unavailable_reason()
    assert told in reason
    assert "); install CANN and source its set_env.sh, or uninstall torch_npu, or set " in reason
    assert f"{AUTOLOAD}=0" in reason
    assert reason.startswith(f"torch_npu {RELEASE}.7 is installed but does not work (")
    assert "\n" not in reason
    assert not is_npu_available()
    # Nothing is left of the attempt: another package may make its own.
    assert AUTOLOAD not in os.environ
    assert not any(name.partition(".")[0] == "torch_npu" for name in sys.modules)
    assert capsys.readouterr().out == ""
    assert torch.ones(2).add(1).sum() == 4  # everything else goes on


def test_an_interrupt_while_torch_npu_is_imported_is_passed_on(put_torch_npu):
    put_torch_npu("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        npu_unavailable_reason()


def test_a_torch_npu_that_loaded_by_half_gives_one_sentence(put_torch_npu, monkeypatch):
    monkeypatch.setenv(AUTOLOAD, "1")
    put_torch_npu("")  # no torch_npu.npu
    assert "does not work (AttributeError" in npu_unavailable_reason()
    assert os.environ[AUTOLOAD] == "1"


@pytest.mark.parametrize("release", ["9.8.7", "9.8.7.post3", "9.8.0rc1"])
def test_a_torch_npu_for_another_torch_is_not_even_imported(put_torch_npu, release):
    put_torch_npu("raise AssertionError('imported')", release=release)
    assert npu_unavailable_reason() == (
        f"torch_npu {release} is made for torch 9.8 and this is torch {torch.__version__}; install "
        f"torch_npu {RELEASE} or torch 9.8, or uninstall torch_npu."
    )


def test_a_torch_npu_for_another_torch_that_is_loaded_is_believed(put_torch_npu):
    put_torch_npu(release="9.8.7")
    import torch_npu  # noqa: F401, PLC0415 - by the user, or by torch's autoload

    assert is_npu_available()


@pytest.mark.parametrize("release", [f"{RELEASE}.0.post8", f"{RELEASE}.0rc1", "unknown"])
def test_releases_of_the_same_torch_and_unknown_ones_are_asked(put_torch_npu, release):
    put_torch_npu(release=release)
    assert is_npu_available()


def test_torch_npu_is_asked_once(put_torch_npu):
    put_torch_npu("raise ImportError('first')")
    first = npu_unavailable_reason()
    assert npu_unavailable_reason() is first
