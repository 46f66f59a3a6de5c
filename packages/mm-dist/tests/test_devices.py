from types import SimpleNamespace

import pytest
import torch

from mm_dist import ConfigError, LaunchError, available_device_type, local_device
from mm_dist._backends import choose_backend
from mm_dist._devices import find_accelerator_of

# Everything but the question whether there is a device raises, as a call of CUDA may.
NO_CUDA = """
import torch

class NoCuda:
    def is_available(self):
        print("asked")
        return False

    def __getattr__(self, name):
        raise AssertionError(f"torch.cuda.{name} was called")

torch.cuda = NoCuda()
from mm_dist import available_device_type, init_dist, local_device

assert local_device(3, "cpu") == torch.device("cpu")
init_dist("none", device_type="cpu")
print("now")
assert available_device_type() == "cpu"
assert init_dist("none").device == local_device(0) == torch.device("cpu")
"""
CHIP = """
import torch
from types import SimpleNamespace

current = []
torch.chip = SimpleNamespace(
    is_available=lambda: True, device_count=lambda: 2, set_device=current.append
)
CHIP = dict(
    name="chip",
    process_group_backend="chipccl",
    device_module="chip",
    visible_devices_variable="CHIP_VISIBLE",
    autocast_dtypes=["bfloat16"],
    seed=print,
    sync=print,
    memory=None,
    scaler="torch.chip.amp:GradScaler",
)
"""


def stand_in(count):
    """A stand-in for a device module such as torch.cuda, with ``count`` devices."""
    current = []
    return SimpleNamespace(
        is_available=lambda: count > 0,
        device_count=lambda: count,
        set_device=current.append,
        current_device=lambda: current[-1],
    )


@pytest.fixture
def use_stand_in(monkeypatch):
    def use(name, count):
        monkeypatch.setattr(torch, name, stand_in(count), raising=False)

    for name in ("npu", "cuda", "xpu", "mlu", "musa"):
        use(name, 0)
    monkeypatch.setattr(torch.backends, "mps", stand_in(0), raising=False)
    return use


@pytest.mark.usefixtures("use_stand_in")
def test_available_device_type_is_cpu_without_accelerator():
    assert available_device_type() == "cpu"


def test_available_device_type_prefers_npu_to_cuda(use_stand_in):
    use_stand_in("cuda", 1)
    assert available_device_type() == "cuda"
    use_stand_in("npu", 1)
    assert available_device_type() == "npu"


@pytest.mark.parametrize(
    ("local_rank", "count", "index"),
    [(0, 8, 0), (7, 8, 7), (3, 1, 0)],
    ids=["first", "last", "bound-by-the-scheduler"],
)
def test_local_device_maps_local_ranks(use_stand_in, local_rank, count, index):
    use_stand_in("cuda", count)
    assert local_device(local_rank) == torch.device("cuda", index)


def test_local_device_prints_the_variables_when_there_are_too_few(use_stand_in, monkeypatch):
    use_stand_in("cuda", 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setenv("SLURM_LOCALID", "2")
    message = r"Local rank 2 has no cuda device: .* sees 2 \(CUDA_VISIBLE_DEVICES=0,3,.*LOCALID=2"
    with pytest.raises(LaunchError, match=message):
        local_device(2)
    with pytest.raises(LaunchError, match=r"sees 0 .*use device_type='cpu'"):
        local_device(0, "xpu")


def test_local_device_refuses_an_unknown_type():
    with pytest.raises(ConfigError, match=r"'cudaa' is not known; .*Did you mean 'cuda'"):
        local_device(0, "cudaa")


def test_nothing_but_availability_is_asked_of_cuda_on_a_machine_without_it(run_script):
    result = run_script(NO_CUDA)
    assert result.returncode == 0, result.stderr
    # Not even that where the device type is given.
    assert result.stdout.startswith("now\nasked\n")


@pytest.mark.usefixtures("use_stand_in")
def test_installed_device_is_used(install_plugin, monkeypatch):
    monkeypatch.setattr(torch, "chip", None, raising=False)
    install_plugin("chip-plugin", "[mm.devices]\nchip = chip_plugin:CHIP\n", CHIP)
    assert available_device_type() == "chip"
    assert choose_backend(None, "chip") == "chipccl"
    assert find_accelerator_of("chipccl").name == "chip"
    with pytest.raises(LaunchError, match=r"Local rank 2 has no chip device.*CHIP_VISIBLE=not set"):
        local_device(2)


@pytest.mark.parametrize(
    "record", ["{'name': 'chip'}", "'chip'", "dict.fromkeys(KEYS)"], ids=["few", "text", "empty"]
)
def test_installed_device_needs_its_keys(install_plugin, record):
    keys = "KEYS = ['name', 'process_group_backend', 'device_module']\n"
    install_plugin("bad-chip", "[mm.devices]\nchip = bad_chip:CHIP\n", f"{keys}CHIP = {record}\n")
    with pytest.raises(ConfigError, match=r"keys name, process_group_backend, device_module"):
        local_device(0, "chip")


@pytest.mark.usefixtures("use_stand_in")
def test_a_device_plugin_that_cannot_be_loaded_is_absent(install_plugin):
    source = "raise ImportError('libchip.so: cannot open')\n"
    install_plugin("lost-chip", "[mm.devices]\nchip = lost_chip:CHIP\n", source)
    # A built-in type asks no plugin.
    assert local_device(0, "cpu") == torch.device("cpu")
    message = r"Device 'chip' is not used: .*lost_chip:CHIP .*libchip\.so: cannot open"
    with pytest.warns(UserWarning, match=message) as caught:
        assert available_device_type() == "cpu"
    assert caught[0].filename == __file__
    with pytest.raises(ConfigError, match="device_type='chip' is not known"):
        local_device(0, "chip")


@pytest.mark.usefixtures("use_stand_in")
def test_an_accelerator_that_torch_lacks_comes_with_its_extension(run_script, tmp_path):
    # Stand-ins for intel_extension_for_pytorch and oneccl_bindings_for_pytorch.
    device = "import torch\nfrom types import SimpleNamespace as S\n"
    device += "torch.xpu = S(is_available=lambda: True, device_count=lambda: 2)\n"
    (tmp_path / "intel_extension_for_pytorch.py").write_text(device)
    backend = "import torch.distributed as dist\ndist.Backend.CCL = 'ccl'\n"
    (tmp_path / "oneccl_bindings_for_pytorch.py").write_text(backend)
    source = (
        "import torch\ntorch.xpu = None\n"
        "from mm_dist import available_device_type\n"
        "from mm_dist._backends import choose_backend\n"
        "print(available_device_type(), choose_backend('ccl', 'xpu'))\n"
    )
    result = run_script(source, PYTHONPATH=str(tmp_path))
    assert result.stdout == "xpu ccl\n", result.stderr


@pytest.mark.parametrize(
    "error",
    ["ImportError('libhccl.so: cannot open')", "Exception('ASCEND_OPP_PATH')", "SystemExit(1)"],
    ids=["no library", "half of CANN", "exit"],
)
def test_broken_extension_means_that_the_device_is_absent(run_script, tmp_path, error):
    # A stand-in for torch_npu on a machine without its driver libraries.
    (tmp_path / "torch_npu.py").write_text(f"raise {error}\n")
    source = "import mm_dist\nprint(mm_dist.local_device(0, 'npu'))\n"
    result = run_script(source, PYTHONPATH=str(tmp_path))
    assert "LaunchError: Local rank 0 has no npu device" in result.stderr
