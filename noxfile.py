"""The one door: every check of this repository is a nox session.

A torch installation takes 3 to 7 GB, so there is one per (torch, Python) pair, under
``.nox/torch``. The environment of a session is thin: it sees that torch through a ``.pth`` line
and holds only what the session itself installs. ``test_alone.py`` of every package proves that no
other package of ours leaks in that way.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import nox

nox.needs_version = ">=2024.10.9"
# The .pth line is read by pip inside the environment; uv would not see it.
nox.options.default_venv_backend = "virtualenv"
nox.options.tags = ["quick"]

ROOT = Path(__file__).parent.resolve()
SHARED_TORCH = ROOT / ".nox" / "torch"
# mm-runner last: it is the one that needs the others.
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
OLDEST_PYTHON, NEWEST_PYTHON = (3, 10), (3, 14)


class Torch(NamedTuple):
    """What one torch release needs around it.

    ``python`` is an interpreter that the release has wheels for, ``None`` the one running nox.
    """

    python: str | None
    numpy: str = "numpy"
    setuptools: str = "setuptools"


# Ordered, oldest first. torch.compile of 2.0 runs on Python 3.10 only, and needs the pkg_resources
# that setuptools 81 warns of and 82 dropped; numpy 2 needs torch 2.3.
TORCH = {
    "1.13.1": Torch("3.10", "numpy<2", "setuptools<81"),
    "2.0.1": Torch("3.10", "numpy<2", "setuptools<81"),
    "2.4.1": Torch("3.11"),
    "2.6.0": Torch("3.12"),
    "2.13.0": Torch(None),
    "2.14.1": Torch("3.13"),
    "2.15.0": Torch("3.14"),
}
DEFAULT_TORCH = "2.13.0"
# What mm-runner is compared with, each in the version that the comparison was written for.
PEERS = (
    "accelerate==1.15.0",
    "lightning-fabric==2.6.6",
    "pytorch-lightning==2.6.6",
    "mmengine==0.10.7",
    "setuptools<81",  # mmengine imports pkg_resources
    "transformers==5.23.0",
    "timm==1.0.31",
    "torchvision==0.29.1",
    "matplotlib",
)
# MMEngine with a library, and their maintained fork, each with the newest of what they import that
# they still work with. Two of the fork's libraries name requirements that cannot be met together.
LIBRARIES_TORCH = "2.14.1"
LIBRARIES = {
    "mmengine": (
        "torchvision==0.29.1",
        "setuptools<81",
        "mmengine==0.10.7",
        "mmcv-lite==2.2.0",
        "mmpretrain[multimodal]==1.2.0",
        "transformers==4.44.2",
        "pycocoevalcap==1.2",
        "sentencepiece==0.2.1",
    ),
    "onedl": (
        "torchvision==0.29.1",
        "setuptools<81",
        "numpy<2",
        "onedl-mmengine==0.10.12",
        "onedl-mmpretrain==1.3.6",
        "opencv-python<4.12",
        "imgaug==0.4.0",
        "scipy",
        "ftfy",
        "regex",
        "prettytable",
        "pycocotools",
        "shapely",
        "six",
        "terminaltables",
        "tqdm",
    ),
}
FORKS_MMCV = "onedl-mmcv==2.3.6"
FORKS_LIBRARIES = ("onedl-mmsegmentation==1.4.2", "onedl-mmdetection==3.5.1")
CHECKED = {"mmengine": ("mmpretrain",), "onedl": ("mmpretrain", "mmseg", "mmdet")}
EXPORT = ("safetensors==0.8.0", "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0")
ENGINES = ("ray[default,train]==2.60.0", "submitit==1.5.4", "accelerate==1.15.0")
# What the extras of mm-runner integrate with, each in the version that the tests were written for.
ECOSYSTEM = (
    "torchvision==0.29.1",
    "timm==1.0.31",
    "transformers==5.23.0",
    "peft==0.21.2",
    "datasets==5.2.0",
    "torchmetrics==1.9.0",
    "pycocotools==2.0.11",
    "mlflow==3.17.2",
    "wandb==0.31.0",
    "tensorboard==2.21.0",
    "webdataset==1.0.2",
    "torchdata==0.11.0",
    *EXPORT,
    *ENGINES,
    "nbclient==0.11.0",
    "ipykernel==7.4.0",
    "kubeflow_trainer_api==2.3.0",
)
# Its requirements exclude current transformers; the part that reads shards imports only these.
MDS = (
    "mosaicml-streaming==0.13.0",
    "brotli==1.2.1",
    "catalogue==2.0.10",
    "cramjam==2.14.0",
    "python-snappy==0.7.3",
    "zstd==1.5.7.2",
)
# Files of tests run beside one another.
PARALLEL = ("--numprocesses=auto", "--maxprocesses=4", "--dist=loadfile")
# They would compete for the cores with threads of their own.
ONE_THREAD = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
SITE = (
    "sphinx==8.1.3",
    "myst-parser==4.0.1",
    "furo==2024.8.6",
    "sphinxcontrib-programoutput==0.20",
    "jieba==0.42.1",  # search in Chinese
    *ENGINES,
    *EXPORT,
)

each_package = nox.parametrize("package", [nox.param(name, id=name) for name in PACKAGES])
each_torch = nox.parametrize(
    "python,torch",
    [
        nox.param(row.python, torch, id=f"torch-{torch}", tags=["quick"] * (torch == DEFAULT_TORCH))
        for torch, row in TORCH.items()
    ],
)


@nox.session(tags=["quick"])
def lint(session: nox.Session) -> None:
    """Check style, formatting, workflows and changelogs."""
    session.install("ruff==0.17.5", "check-jsonschema==0.38.2")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    workflows = [str(path) for path in sorted(ROOT.glob(".github/workflows/*.yml"))]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    forms = [str(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{x}.yml") for x in ("bug", "feature")]
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *forms)
    for package in PACKAGES:
        check_changelog(session, package)


@nox.session(tags=["quick"])
def types(session: nox.Session) -> None:
    """Check the types of every package's source, strictly."""
    install_over_torch(session, DEFAULT_TORCH, "mypy==2.4.1", "types-PyYAML", "rich")
    for package in PACKAGES:
        # Only mm-runner may see its siblings: an import of one elsewhere is an error here.
        visible = siblings_of(package)
        session.run(
            "mypy",
            f"--config-file={package_dir(package) / 'pyproject.toml'}",
            f"--cache-dir={ROOT / '.nox' / 'mypy'}",
            str(package_dir(package) / "src"),
            env={"MYPYPATH": os.pathsep.join(str(package_dir(name) / "src") for name in visible)},
        )


@nox.session
@each_torch
@each_package
def tests(session: nox.Session, package: str, torch: str) -> None:
    """Test one package with none of its siblings installed (mm-runner: with those it needs)."""
    sources = [str(package_dir(name)) for name in [*siblings_of(package), package]]
    if package == "mm-runner" and torch == DEFAULT_TORCH:
        # Without them the tests of the extras, and of torchdata's loader, are passed over.
        sources[-1] += "[plot,tensorboard,metrics,wandb]"
        sources.append("torchdata==0.11.0")
    install_over_torch(session, torch, *sources, *test_requirements(package))
    session.chdir(package_dir(package))
    session.run("pytest", *PARALLEL, *session.posargs, env=ONE_THREAD)


@nox.session
@each_torch
def together(session: nox.Session, torch: str) -> None:
    """Test all packages side by side, from their wheels."""
    install_wheels(session, torch, "pytest>=8", "pytest-xdist>=3.5")
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "together", *PARALLEL, *session.posargs, env=ONE_THREAD)


@nox.session(name="together-minimum", python="3.10")
def together_minimum(session: nox.Session) -> None:
    """Test all packages side by side, on the lowest version of everything that they require."""
    lowest = {
        name: version
        for package in PACKAGES
        for name, version in re.findall(r"([\w-]+)>=([\d.]+)", " ".join(requirements_of(package)))
    }
    # A sibling older than the sources comes from the package index.
    here = [
        x for x in PACKAGES if f"{version_of(x)}.".startswith(f"{lowest.get(x, version_of(x))}.")
    ]
    pins = [f"{name}=={version}" for name, version in lowest.items() if name not in here]
    install_wheels(session, lowest["torch"], *pins, "pytest>=8", "pytest-xdist>=3.5", packages=here)
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "together", *PARALLEL, *session.posargs, env=ONE_THREAD)


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """Test all packages on all versions of torch, or on ``-- VERSION``; write it into the docs."""
    reports = ROOT / ".nox" / "matrix"
    shutil.rmtree(reports, ignore_errors=True)
    versions = session.posargs or list(TORCH)
    if unknown := set(versions) - set(TORCH):
        session.error(f"There is no {', '.join(unknown)} in the matrix: {', '.join(TORCH)}.")
    for torch in versions:
        python = TORCH[torch].python or f"{sys.version_info[0]}.{sys.version_info[1]}"
        for of in [*PACKAGES, "together"]:
            cell = f"together(torch-{torch})" if of == "together" else f"tests({of}, torch-{torch})"
            report = f"--junitxml={reports / f'{of}_{torch}_{python}.xml'}"
            command = ("-m", "nox", "-f", __file__, "-s", cell, "--", report)
            session.run(sys.executable, *command, success_codes=[0, 1])  # the table has what failed
    session.run(sys.executable, str(ROOT / "integration_tests" / "matrix_page.py"), str(reports))


@nox.session
@nox.parametrize(
    "python,torch",
    [nox.param(row.python, torch, id=f"torch-{torch}") for torch, row in TORCH.items()],
)
def npu(session: nox.Session, torch: str) -> None:
    """Run all packages on a stand-in for NPUs; follow torch_npu's own optimizers, and print how."""
    install_wheels(session, torch, "pytest>=8")
    session.chdir(ROOT / "integration_tests")
    if torch in (DEFAULT_TORCH, list(TORCH)[-1]):
        follow_torch_npu(session)
    # Compiles what makes torch believe in NPUs, and keeps it under .nox.
    session.run("pytest", "npu_device", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Break ranks, hosts, links, disks and data; ``-- -m cut``: some of it, ``-- --long``: more."""
    install_wheels(session, DEFAULT_TORCH, "pytest>=8", "safetensors>=0.4.3")
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "faults", *session.posargs)


@nox.session
def clusters(session: nox.Session) -> None:
    """Run on real Slurm, MPI and two hosts, which it installs and starts; ``-- -m cut``: a few."""
    install_wheels(session, DEFAULT_TORCH, "pytest>=8", "submitit==1.5.4")
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "clusters", *session.posargs)


@nox.session
@nox.parametrize("engine", [nox.param(name, id=name) for name in LIBRARIES])
def libraries(session: nox.Session, engine: str) -> None:
    """Train OpenMMLab's libraries with MMEngine or its fork, and check their configurations."""
    install_wheels(session, LIBRARIES_TORCH, "pytest>=8", *LIBRARIES[engine])
    if engine == "onedl":
        session.install("--no-deps", str(wheel_of_mmcv(session)), *FORKS_LIBRARIES)
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "libraries", *session.posargs)
    for package in CHECKED[engine] if not session.posargs else ():
        table = ROOT / ".nox" / f"{engine}-{package}.md"
        session.run("python", "libraries/check_configs.py", package, str(table))


@nox.session
def ecosystem(session: nox.Session) -> None:
    """Use models, metrics, trackers, streams and engines of other libraries; run the examples."""
    install_wheels(session, LIBRARIES_TORCH, "pytest>=8", *ECOSYSTEM)
    session.install("--no-deps", *MDS)
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "ecosystem", *session.posargs, env=ONE_THREAD)


@nox.session
def train(session: nox.Session) -> None:
    """Train on real images: two processes, mixed precision, compiled. Options after ``--``."""
    install_wheels(session, DEFAULT_TORCH)
    session.chdir(ROOT / "packages" / "mm-runner")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    # Two processes on the CPU, whatever the machine has: one GPU cannot serve two.
    script = ["examples/distributed_training.py", "--device=cpu", "--amp=bfloat16", "--compile"]
    script.append("--at-least=97")
    # One OpenMP thread a process is torchrun's own default; said here, it need not warn.
    session.run("python", *launch, *script, *session.posargs, env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into ``.nox/site``, and run the documents' examples."""
    install_wheels(session, DEFAULT_TORCH, "pytest>=8", *SITE)
    site = ROOT / ".nox" / "site"
    shutil.rmtree(site, ignore_errors=True)  # pages that are gone
    for language in ("en", "zh_cn"):
        build = ("sphinx-build", "-q", "-n", "-W", "--keep-going", "-c", "docs", "-t", language)
        session.run(*build, str(ROOT), str(site / language), env={"COLUMNS": "100"})
    shutil.copy(ROOT / "docs" / "site.html", site / "index.html")
    session.chdir(ROOT / "integration_tests")
    session.run("pytest", "docs", *session.posargs)
    for package in PACKAGES:
        session.chdir(package_dir(package))
        session.run("pytest", "tests/test_readme.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Compare speed with the peers', into ``.nox/benchmarks``; ``-- --quick``: in some minutes."""
    install_wheels(session, LIBRARIES_TORCH, *PEERS)
    # The fork has MMEngine's import name, and no requirements but its own.
    fork = Path(session.virtualenv.location, "onedl")
    session.install("--no-deps", f"--target={fork}", "--upgrade", "onedl-mmengine==0.10.12")
    results = ROOT / ".nox" / "benchmarks"
    results.mkdir(exist_ok=True)
    files = [f"--json={results / 'results.json'}", f"--chart={results / 'results.svg'}"]
    script = ROOT / "integration_tests" / "benchmarks" / "compare.py"
    session.run("python", str(script), *files, *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and the sdist of every package into ``dist/``, and install each alone."""
    install_over_torch(session, DEFAULT_TORCH, "build", "twine")
    dist = ROOT / "dist"
    for old in dist.glob("mm_*"):
        old.unlink()
    for package in PACKAGES:
        session.run("python", "-m", "build", f"--outdir={dist}", str(package_dir(package)))
    files = sorted(dist.glob("mm_*"))
    session.run("twine", "check", "--strict", *map(str, files))
    for file in files:
        session.run("python", "-m", "pip", "uninstall", "-q", "-y", *PACKAGES)
        session.install(f"--find-links={dist}", str(file))  # mm-runner's siblings are there
        session.run("python", "-c", f"import {file.name.partition('-')[0]}")


@nox.session
def release(session: nox.Session) -> None:
    """Build the package of the tag ``-- mm-amp-v0.2.0`` and its bill of materials, in ``dist/``."""
    package, _, version = "".join(session.posargs).rpartition("-v")
    if package not in PACKAGES or version != version_of(package):
        present = ", ".join(f"{name}-v{version_of(name)}" for name in PACKAGES)
        session.error(f"Give the tag of a version that the sources have: {present}.")
    check_changelog(session, package, is_release=True)
    session.install("build", "twine", "cyclonedx-bom==7.5.0")
    sources = Path(session.create_tmp(), package)
    shutil.rmtree(sources, ignore_errors=True)
    shutil.copytree(package_dir(package), sources)
    shutil.copy(ROOT / ".gitignore", sources)  # a build would take nox's, which ignores all
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
        add_addresses(sources, f"{server}/{repository}", version)
    else:
        session.warn("GITHUB_REPOSITORY is not set: without URLs, and the README's links relative.")
    dist = ROOT / "dist" / "release"  # which is published; of this package alone
    shutil.rmtree(dist, ignore_errors=True)
    session.run("python", "-m", "build", f"--outdir={dist}", str(sources))
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    requirements = Path(session.create_tmp(), "requirements.txt")
    requirements.write_text("\n".join(pyproject_of(package)["project"]["dependencies"]) + "\n")
    bom = f"--output-file={ROOT / 'dist' / f'{package}-{version}.cdx.json'}"
    project = f"--pyproject={sources / 'pyproject.toml'}"
    session.run("cyclonedx-py", "requirements", project, bom, str(requirements))


def add_addresses(sources: Path, repository: str, version: str) -> None:
    """Write where the repository is into a package's metadata and README, for its page on PyPI."""
    package = sources.name
    files = f"{repository}/blob/{package}-v{version}"
    readme = sources / "README.md"
    text = readme.read_text(encoding="utf-8").replace("](../../", f"]({files}/")
    text = re.sub(r"pip install \./packages/.*", f"pip install {package}", text)
    text = text.replace("pip install './packages/", "pip install '")
    text = text.replace("](examples/", f"]({files}/packages/{package}/examples/")
    readme.write_text(text, encoding="utf-8")
    urls = {
        "Source": repository,
        "Documentation": f"{files}/docs/en/index.md",
        "Changelog": f"{files}/packages/{package}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }
    with (sources / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write("\n[project.urls]\n")
        project.writelines(f'{name} = "{url}"\n' for name, url in urls.items())


def package_dir(package: str) -> Path:
    """Return the folder of ``package``."""
    return ROOT / "packages" / package


def pyproject_of(package: str) -> dict[str, Any]:
    """Return the ``pyproject.toml`` of ``package``."""
    return nox.project.load_toml(package_dir(package) / "pyproject.toml")


def version_of(package: str) -> str:
    """Return the version of ``package`` in the sources."""
    return pyproject_of(package)["project"]["version"]


def requirements_of(package: str) -> list[str]:
    """List what ``package`` requires, with the extra that its examples need."""
    project = pyproject_of(package)["project"]
    return project["dependencies"] + project.get("optional-dependencies", {}).get("examples", [])


def siblings_of(package: str) -> list[str]:
    """List the packages of ours that ``package`` requires."""
    names = [re.split(r"[<>=!~ \[]", requirement)[0] for requirement in requirements_of(package)]
    return [name for name in names if name in PACKAGES]


def test_requirements(package: str) -> tuple[str, ...]:
    """Return the ``test`` dependency group of ``package``."""
    return nox.project.dependency_groups(pyproject_of(package), "test")


def install_over_torch(session: nox.Session, torch: str, *requirements: str) -> None:
    """Make the shared ``torch`` visible to ``session``, and install ``requirements`` over it."""
    purelib = ask_python(session, "import sysconfig; print(sysconfig.get_path('purelib'))")
    Path(purelib, "shared_torch.pth").write_text(f"{shared_torch(session, torch)}\n")
    # The pin stands beside the requirements, so that the resolver cannot choose another torch.
    session.install(f"torch=={torch}", *requirements)


def install_wheels(
    session: nox.Session, torch: str, *requirements: str, packages: Sequence[str] = PACKAGES
) -> None:
    """Build wheels of ``packages``, and install them with mm-runner's example extra."""
    wheels = Path(session.create_tmp())
    for old in wheels.glob("*.whl"):
        old.unlink()
    sources = [str(package_dir(package)) for package in packages]
    session.run("python", "-m", "pip", "wheel", "-q", "--no-deps", f"-w{wheels}", *sources)
    built = [str(wheel) for wheel in sorted(wheels.glob("*.whl"))]
    with_extra = [f"{wheel}[examples]" if "mm_runner" in wheel else wheel for wheel in built]
    install_over_torch(session, torch, *with_extra, *requirements)
    # Where an environment is used again: wheels of an unchanged version are new all the same.
    session.install("--force-reinstall", "--no-deps", *built)


def shared_torch(session: nox.Session, torch: str) -> Path:
    """Return the folder of the one installation of ``torch`` for the session's Python."""
    version = tuple(
        map(int, ask_python(session, "import sys; print(*sys.version_info[:2])").split())
    )
    if torch == DEFAULT_TORCH and not OLDEST_PYTHON <= version <= NEWEST_PYTHON:
        session.error(
            f"torch {torch} was asked for; nox runs on Python {version[0]}.{version[1]}, which it "
            "has no wheels for. Run nox with Python 3.10 to 3.14."
        )
    site = SHARED_TORCH / f"{torch}-cp{version[0]}{version[1]}"
    if not site.is_dir():
        unfinished = site.with_name(f"{site.name}.{os.getpid()}.unfinished")
        around = TORCH.get(torch, Torch(None))
        packages = [f"torch=={torch}", around.numpy, around.setuptools]
        session.install(f"--target={unfinished}", *packages)
        # Whole or absent: a session stopped half-way leaves nothing that a later one would use.
        unfinished.rename(site)
    return site


def wheel_of_mmcv(session: nox.Session) -> Path:
    """Return the wheel of the fork's mmcv; built with its operators for the CPU, and kept."""
    kept = ROOT / ".nox" / "mmcv" / ask_python(session, "import sys; print(sys.version_info[1])")
    if not list(kept.glob("*.whl")):
        session.install("ninja", "psutil", "wheel")
        source = Path(session.create_tmp()) / "mmcv"
        pip = ("python", "-m", "pip")
        options = ("--no-deps", "--no-build-isolation", "--no-binary=:all:")
        session.run(*pip, "download", *options, f"-d{source}", FORKS_MMCV)
        (archive,) = source.glob("*.tar.gz")
        session.run("tar", f"--directory={source}", "-xzf", str(archive), external=True)
        setup = source / archive.name.removesuffix(".tar.gz") / "setup.py"
        text = setup.read_text(encoding="utf-8")
        # The headers of torch since 2.14 are C++20.
        setup.write_text(text.replace("-std=c++17", "-std=c++20"), encoding="utf-8")
        environment = {"MMCV_WITH_OPS": "1", "FORCE_CPU": "1"}
        options = ("--no-deps", "--no-build-isolation", f"-w{kept}")
        session.run(*pip, "wheel", *options, str(setup.parent), env=environment)
    (wheel,) = kept.glob("*.whl")
    return wheel


def ask_python(session: nox.Session, program: str) -> str:
    """Run ``program`` in the session's Python and return what it prints."""
    return str(session.run("python", "-c", program, silent=True, log=False)).strip()


def follow_torch_npu(session: nox.Session) -> None:
    """Compare our optimizers with those in the wheel of torch_npu for the default torch.

    The wheel is unpacked, never installed: it would break ``import torch``.
    """
    wheels = Path(session.create_tmp()).resolve() / "torch_npu"
    requirement = f"torch_npu=={DEFAULT_TORCH}"
    session.run("python", "-m", "pip", "download", "-q", "--no-deps", f"-d{wheels}", requirement)
    (wheel,) = wheels.glob(f"torch_npu-{DEFAULT_TORCH}-*.whl")
    session.run("pytest", "npu", *session.posargs, env={"TORCH_NPU_WHEEL": str(wheel)})
    session.run("python", "npu/trajectories.py", str(wheel))


def check_changelog(session: nox.Session, package: str, *, is_release: bool = False) -> None:
    """Fail unless the changelog has a section for the version, dated for a release."""
    section = f"## [{version_of(package)}]" + " - 2" * is_release
    if section not in (package_dir(package) / "CHANGELOG.md").read_text(encoding="utf-8"):
        session.error(f"packages/{package}/CHANGELOG.md has no section '{section}'. Add it.")


if __name__ == "__main__":
    nox.main()
