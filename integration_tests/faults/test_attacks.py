"""Malicious files end in one clear error: they run no code, lead nowhere, and take no memory.

Each attacks a line of the table in SECURITY.md. ``attacks.py`` writes them.
"""

import pickle
import random
import resource
import shutil
import signal
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import attacks
import pytest
import torch
import torch.distributed.checkpoint as dcp
from small_run import build

from mm_compile import CacheFileError, unpack_cache
from mm_runner.checkpoint import (
    latest_readable,
    load_checkpoint_file,
    remove_checkpoint,
    remove_leftovers,
    save_checkpoint_file,
)
from mm_runner.errors import MMRunnerError
from mm_runner.evaluator import load_predictions
from mm_runner.tools import convert_mmengine_checkpoint

# As errors, warnings would end readers before they do harm.
pytestmark = pytest.mark.filterwarnings("ignore")

OURS = (MMRunnerError, CacheFileError)
MEMORY, ADDRESS_SPACE, SECONDS, LONGEST_MESSAGE = attacks.CLAIM // 4, 1 << 30, 30, 2000


def each(named):
    """Parametrize a test by attacks; it fails for those that still succeed."""

    def marks(name):
        damage = attacks.OPEN.get(name, "")
        return [pytest.mark.cut, pytest.mark.xfail(reason=damage)] if damage else pytest.mark.cut

    listed = [pytest.param(one, id=name, marks=marks(name)) for name, one in named.items()]
    return pytest.mark.parametrize("attack", listed)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The current directory, with a good checkpoint in ``run``, and what lies outside of that."""
    place = tmp_path / "place"
    content = {"meta": {"epoch": 1, "iter": 4}, "state_dict": {"w": torch.ones(2)}}
    save_checkpoint_file(content, place / "run" / "epoch_1.pth")
    save_checkpoint_file(content, place / "outside" / "secret")
    monkeypatch.chdir(place)
    return place


@contextmanager
def harmless(place):
    """Check that the block changes no file in ``place``, takes little memory, and ends."""

    def end(*_):
        raise TimeoutError

    files, began = _files_in(place), time.monotonic()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ADDRESS_SPACE, limits[1]))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from the memory in use
    signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    in_use = _memory("VmRSS")
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert time.monotonic() - began < SECONDS
    assert _memory("VmHWM") - in_use < MEMORY
    assert _files_in(place) == files


def _memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _files_in(place):
    return {path: path.is_file() and path.read_bytes() for path in place.rglob("*")}


def is_clear(message):
    return message.isprintable() and len(message) < LONGEST_MESSAGE


def refused(read, *arguments):
    with pytest.raises(OURS) as caught:
        read(*arguments)
    assert is_clear(str(caught.value))


@each(attacks.CHECKPOINTS)
def test_a_malicious_checkpoint_is_refused_and_passed_over(place, attack):
    path = place / "run" / "epoch_2.pth"
    attack(path)
    with harmless(place):
        refused(load_checkpoint_file, path)
        refused(load_predictions, path)
        assert latest_readable(path.parent, lambda _: None)[0].name == "epoch_1.pth"
    with harmless(place):
        convert(path)


def convert(path):
    """Convert a checkpoint, unless it is refused."""
    with suppress(MMRunnerError):
        convert_mmengine_checkpoint(path, "converted.pth")
        Path("converted.pth").unlink()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkpoint of a run."""
    folder = tmp_path_factory.mktemp("trained")
    build(folder, log_level="ERROR").train()
    return folder / "epoch_2.pth"


@each(attacks.RESUMED)
def test_a_run_does_not_resume_from_malicious_content(place, trained, attack):
    checkpoint = torch.load(trained, weights_only=True)
    attack(checkpoint)
    path = place / "run" / "epoch_2.pth"
    torch.save(checkpoint, path)
    options = {"load_from": str(path), "log_level": "CRITICAL"}
    with harmless(place):
        refused(lambda: build(place.parent / "work", **options).train())


@each(attacks.MARKERS)
def test_a_malicious_marker_is_passed_over(place, attack):
    attack(place / "run" / "last_checkpoint")
    told = []
    with harmless(place):
        found, _ = latest_readable(place / "run", told.append)
    assert found == place / "run" / "epoch_1.pth"
    assert all(map(is_clear, told))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """A directory with a checkpoint whose tensor is in a folder, as torch writes it."""
    directory, folder = tmp_path_factory.mktemp("sharded"), f"epoch_2.pth.shards-{'0a' * 6}"
    tensors = {"state_dict.w": torch.arange(8, dtype=torch.float64)}
    dcp.save(tensors, storage_writer=dcp.FileSystemWriter(directory / folder))
    content = {"meta": {}, "state_dict": {"w": None}, "shards": folder}
    save_checkpoint_file(content, directory / "epoch_2.pth")
    return directory


@each(attacks.SHARDS)
def test_a_malicious_folder_of_shards_is_refused(place, sharded, attack):
    path = place / "run" / "epoch_2.pth"
    shutil.copytree(sharded, path.parent, dirs_exist_ok=True)
    attack(path)
    with harmless(place):
        refused(load_checkpoint_file, path)


def test_what_a_link_leads_to_is_not_removed(place, sharded):
    run = place / "run"
    shutil.copy(sharded / "epoch_2.pth", run)
    for number in (2, 3):
        (run / f"epoch_{number}.pth.shards-{'0a' * 6}").symlink_to("../outside")
    with harmless(place / "outside"):
        remove_leftovers(run)
        remove_checkpoint(run / "epoch_2.pth")


@each(attacks.PRETRAINED)
def test_a_malicious_directory_of_weights_is_refused(place, attack):
    folder = place / "pretrained"
    folder.mkdir()
    attack(folder)
    if list(folder.glob("*.safetensors*")):
        pytest.importorskip("safetensors")
    with harmless(place):
        refused(load_checkpoint_file, folder)


@each(attacks.PACKS)
def test_a_malicious_pack_is_refused(place, attack):
    attack(place / "cache.zip")
    with harmless(place / "outside"):
        refused(unpack_cache, "cache.zip", "cache")


@pytest.mark.parametrize("kind", ["archive", "pickle", "old", "code", "metadata", "shard", "pack"])
def test_a_mutated_file_is_read_or_refused(place, trained, sharded, kind):
    path = place / "run" / "epoch_2.pth"
    mutate = partial(attacks.mutated, generator=random.Random(0))  # noqa: S311 - no secret
    shutil.copytree(sharded, path.parent, dirs_exist_ok=True)
    parts = {"metadata": attacks.metadata_of(path), "shard": attacks.shard_of(path)}
    target = parts.get(kind, path)
    if kind in ("archive", "pickle"):
        shutil.copy(trained, path)
    elif kind in ("old", "code"):
        content = torch.load(trained, weights_only=True) if kind == "old" else attacks.HARM
        torch.save({"state_dict": content}, path, _use_new_zipfile_serialization=False)
    elif kind == "pack":
        attacks.pack(path)
    good = target.read_bytes()
    with harmless(place):
        for _ in range(300):
            if kind == "pickle":  # in an archive whose checksums are right
                target.write_bytes(good)
                attacks.rewrite(path, {"data.pkl": mutate})
            else:
                target.write_bytes(mutate(good))
            with suppress(*OURS):
                if kind == "pack":
                    unpack_cache(path, "cache")
                convert(path)
                load_checkpoint_file(path)
            shutil.rmtree("cache", ignore_errors=True)
        target.write_bytes(good)


PLAIN_READERS = {
    "pickle_that_runs_code": lambda path: pickle.loads(path.read_bytes()),  # noqa: S301 - the harm
    "archive_that_runs_code": lambda path: torch.load(path, weights_only=False),
    "array_that_claims_memory": lambda path: torch.load(path, weights_only=True),
    "value_that_runs_code": lambda path: dcp.load(
        {"state_dict.w": torch.zeros(8)}, checkpoint_id=attacks.shard_of(path).parent
    ),
}


@pytest.mark.parametrize("name", PLAIN_READERS)
def test_a_plain_reader_does_the_harm(place, sharded, name):
    path = place / "run" / "epoch_2.pth"
    shutil.copytree(sharded, path.parent, dirs_exist_ok=True)
    (attacks.CHECKPOINTS | attacks.SHARDS)[name](path)
    with pytest.raises(AssertionError), harmless(place), suppress(Exception):
        PLAIN_READERS[name](path)
