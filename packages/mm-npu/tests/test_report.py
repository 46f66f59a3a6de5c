import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError

import pytest
import torch
from conftest import RELEASE

import mm_npu
from mm_npu import npu_report
from mm_npu._command import main
from mm_npu._devices._cann import cann_version, driver_version

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_without_torch_npu_the_report_says_so():
    report = npu_report({})
    assert (report.mm_npu, report.torch) == (mm_npu.__version__, torch.__version__)
    assert (report.torch_npu, report.device_count, report.device_names) == (None, 0, ())
    assert report.path == "portable"
    assert report.reason.startswith("torch_npu is not installed")
    assert report.autoload == ("on" if hasattr(torch, "_import_device_backends") else "unsupported")
    with pytest.raises(FrozenInstanceError):
        report.path = "torch_npu"


def test_with_an_npu_the_report_names_the_devices(put_torch_npu, tmp_path):
    put_torch_npu()
    env = {"ASCEND_RT_VISIBLE_DEVICES": "0,1", "ASCEND_HOME_PATH": str(tmp_path / "none")}
    report = npu_report(env)
    assert (report.torch_npu, report.path, report.reason) == (f"{RELEASE}.7", "torch_npu", None)
    assert report.device_names == ("Ascend910B1", "unknown")  # one does not answer
    assert report.device_count == 2
    assert report.visible_devices == "0,1"
    assert (report.cann, report.driver) == (None, None)


def test_strictness_is_reported(capsys, monkeypatch):
    assert npu_report({"MM_NPU_STRICT": "1"}).path == "refused"
    assert npu_report({"MM_NPU_STRICT": "0"}).path == "portable"
    monkeypatch.setenv("MM_NPU_STRICT", "maybe")
    assert main(["env"]) == 2
    assert capsys.readouterr().err.startswith("mm-npu: MM_NPU_STRICT is 'maybe'; it takes 1, true")


def test_autoload_can_be_switched_off():
    if hasattr(torch, "_import_device_backends"):
        assert npu_report({AUTOLOAD: "0"}).autoload == "off"


def test_a_broken_torch_npu_is_reported_and_not_raised(put_torch_npu):
    put_torch_npu("raise OSError('libhccl.so')")
    report = npu_report({})
    assert (report.torch_npu, report.path) == (f"{RELEASE}.7", "portable")
    assert "does not work (OSError: libhccl.so)" in report.reason


@pytest.mark.parametrize(
    "path",
    ["aarch64-linux/ascend_toolkit_install.info", "ascend_nnae_install.info"],
)
def test_the_version_of_cann_is_read_from_its_files(tmp_path, path):
    home = tmp_path / "cann-8.5"
    text = "package_name=Ascend-cann-toolkit\nversion=8.5.0.RC1\ninnerversion=V100R001C25\n"
    write(home / path, text)
    assert cann_version({"ASCEND_HOME_PATH": str(home)}, tmp_path) == "8.5.0.RC1"
    assert cann_version({"ASCEND_TOOLKIT_HOME": str(home)}, tmp_path) == "8.5.0.RC1"
    assert cann_version({}, tmp_path) is None
    for usual in ("ascend-toolkit/latest", "cann"):
        write(tmp_path / "usr/local/Ascend" / usual / path, f"Version = {usual[:4]}\n")
        assert cann_version({}, tmp_path) == usual[:4]
    assert cann_version({"ASCEND_HOME_PATH": str(tmp_path / "gone")}, tmp_path) is None


def test_the_version_of_the_driver_is_read_from_its_file(tmp_path):
    assert driver_version(tmp_path) is None
    write(tmp_path / "usr/local/Ascend/driver/version.info", "ascendhal_version=7\n")
    assert driver_version(tmp_path) is None
    write(tmp_path / "usr/local/Ascend/driver/version.info", "Version=25.0\nhal_version=7.35\n")
    assert driver_version(tmp_path) == "25.0"


def run_command(*arguments, **env):
    return subprocess.run(
        [sys.executable, "-m", "mm_npu", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )


def test_the_command_tells_of_a_torch_npu_that_ends_import_torch(put_torch_npu):
    site = put_torch_npu("print('Warning of CANN')\nraise ImportError('libhccl.so')")
    entry_points = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
    metadata = next(site.glob("*.dist-info"))
    (metadata / "entry_points.txt").write_text(entry_points, encoding="utf-8")
    env = {"PYTHONPATH": str(site)}
    if hasattr(torch, "_import_device_backends"):
        torch_alone = subprocess.run(
            [sys.executable, "-c", "import torch"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **env},
        )
        assert "Failed to load the backend extension: torch_npu" in torch_alone.stderr
    result = run_command("env", "--json", **env)
    assert result.returncode == 1, result.stderr
    found = json.loads(result.stdout)
    assert "does not work (ImportError: libhccl.so)" in found["reason"]
    assert found["autoload"] != "off"
    assert "Traceback" not in result.stderr


def test_the_command_prints_a_table_and_its_status_says_whether_there_is_an_npu(
    put_torch_npu, capsys
):
    before = dict(os.environ)
    assert main(["env"]) == 1
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["torch"].strip() == torch.__version__
    assert rows["torch_npu"].strip() == "not found"
    assert rows["NpuFused* are"].strip() == "the portable ones of mm-npu"
    assert rows["reason"].strip().startswith("torch_npu is not installed")
    put_torch_npu()
    assert main(["env"]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["devices"].strip() == "2, Ascend910B1, unknown"
    assert rows["NpuFused* are"].strip() == "those of torch_npu"
    assert "reason" not in rows
    assert dict(os.environ) == before


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["en"], 2), (["--version"], 0)])
def test_usage(arguments, status, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == status
    if status == 0:
        assert capsys.readouterr().out == f"mm-npu {mm_npu.__version__}\n"
