"""What the commands tell of a machine with NPUs."""

import pytest
import torch
from conftest import DEVICE
from stand_in_site import torch_release


def test_mm_npu_env_tells_versions_devices_and_the_path(run_python):
    done = run_python("-m", "mm_npu", "env")
    assert torch_release() in done.stdout
    assert "torch_npu" in done.stdout
    assert "Ascend910B-stand-in" in done.stdout


def test_a_broken_torch_npu_costs_one_sentence_and_no_more(run_python, tmp_path):
    package = tmp_path / "broken" / "torch_npu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        'raise ImportError("libhccl.so: cannot open shared object file")', encoding="utf-8"
    )
    program = """
import mm_npu, torch, warnings
warnings.simplefilter("ignore", mm_npu.PortableOptimizerWarning)
print(mm_npu.npu_unavailable_reason())
import mm_dist
print(mm_dist.available_device_type())
parameter = torch.nn.Parameter(torch.ones(3))
optimizer = mm_npu.NpuFusedLamb([parameter])
parameter.sum().backward()
optimizer.step()
print(type(optimizer).__module__.split(".")[0])
"""
    done = run_python("-c", program, with_npu=False, PYTHONPATH=str(package.parent))
    reason, device_type, module = done.stdout.splitlines()
    assert "ImportError: libhccl.so" in reason
    assert "install CANN" in reason
    assert (device_type, module) == ("cpu", "mm_npu")


@pytest.mark.needs_device
def test_mm_dist_env_tells_the_device_and_the_backend(run_python):
    done = run_python("-m", "mm_dist", "env")
    assert "npu:0" in done.stdout
    assert "hccl" in done.stdout


def test_the_profiler_is_torch_npus(tmp_path):
    from mm_npu import npu_profiler  # noqa: PLC0415 - after the stand-in is there

    profiler = npu_profiler()
    assert profiler.__name__ == "torch_npu.profiler"
    with profiler.profile() as profile:
        torch.ones(4, 4, device=DEVICE).square().sum()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    assert "aten::square" in (tmp_path / "trace.json").read_text(encoding="utf-8")
