"""What is tested here are the wheels, whole, and not the source tree."""

import importlib
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def test_there_are_five_packages():
    assert PACKAGES == ["mm-amp", "mm-compile", "mm-dist", "mm-npu", "mm-runner"]


@pytest.mark.parametrize("package", PACKAGES)
def test_module_comes_from_the_wheel(package):
    module = importlib.import_module(package.replace("-", "_"))
    assert ROOT / "packages" not in Path(module.__file__).parents
    assert module.__version__ == distribution(package).version
    assert (Path(module.__file__).parent / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist(package):
    module = importlib.import_module(package.replace("-", "_"))
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_every_entry_point_loads(package):
    for entry in distribution(package).entry_points:
        if entry.group != "mm.bridges":  # loaded where another library is installed
            assert callable(entry.load()), entry


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_licence_and_no_tests(package):
    names = [str(file) for file in distribution(package).files]
    assert any("LICENSE" in name for name in names)
    assert not any(name.startswith("tests/") for name in names)
