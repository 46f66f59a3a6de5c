"""Makes the stand-in an installed distribution: a folder for sys.path, metadata and all.

Its C++ part is compiled for the installed torch, once: the folder is kept under ``.nox`` as long as
neither changes. Torch is not imported, since it imports what it finds installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".nox" / "npu_device"
NATIVE, PACKAGE = HERE / "native", HERE / "stand_in" / "torch_npu"
# Older ones differ in what they ask of a device; they get the stand-in without one.
OLDEST_WITH_DEVICE = (2, 13)

METADATA = "Metadata-Version: 2.1\nName: torch_npu\nVersion: {}\n"
# As the real one: torch 2.5 and newer import it by themselves.
ENTRY_POINTS = "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"
LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")


def torch_release():
    """Return the version of the installed torch, without what was built in, as ``2.13.0``."""
    return version("torch").partition("+")[0]


def has_device():
    """Say whether the stand-in adds a device to the installed torch."""
    return tuple(map(int, torch_release().split(".")[:2])) >= OLDEST_WITH_DEVICE


def make_site():
    """Return the folder, made on first use."""
    key = f"{version('torch')}-cp{sys.version_info.major}{sys.version_info.minor}"
    native = make_once(f"{key}-native", sorted(NATIVE.iterdir()), compile_extension)
    return make_once(key, sorted(PACKAGE.rglob("*.py")), lambda site: fill(site, native))


def make_once(name, sources, make):
    """Return a folder that ``make(folder)`` fills, and that is kept until a source changes."""
    content = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = CACHE / f"{name}-{content}"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        unfinished.mkdir(parents=True)
        make(unfinished)
        # Whole or absent; another process may have been faster.
        if folder.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.rename(folder)
    return folder


def fill(site, native):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, site / "torch_npu", ignore=ignored)
    for library in native.iterdir():
        shutil.copy(library, site / "torch_npu")
    info = site / f"torch_npu-{torch_release()}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(torch_release()), encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")


def compile_extension(folder):
    if not has_device():
        return
    target = folder / f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"
    (location,) = find_spec("torch").submodule_search_locations
    torch, compiler = Path(location), os.environ.get("CXX", "c++")
    headers = [torch / "include", torch / "include/torch/csrc/api/include"]
    flags = [f"-I{path}" for path in (*headers, sysconfig.get_path("include"))]
    flags += ["-std=c++20", "-O1", "-fPIC", "-w", "-fvisibility=hidden"]
    objects = {path: folder / f"{path.stem}.o" for path in sorted(NATIVE.glob("*.cpp"))}

    def compile_one(item):
        run(compiler, *flags, "-c", item[0], "-o", item[1])

    with ThreadPoolExecutor() as pool:
        list(pool.map(compile_one, objects.items()))
    linked = [f"-l{name}" for name in LIBRARIES]
    run(compiler, "-shared", "-o", target, *objects.values(), f"-L{torch / 'lib'}", *linked)
    for path in objects.values():
        path.unlink()


def run(*command):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed:\n{done.stderr[-4000:]}")


if __name__ == "__main__":
    print(make_site())  # noqa: T201 - for a shell: PYTHONPATH=$(python stand_in_site.py)
