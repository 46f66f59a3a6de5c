"""Checkpoints whose entries are missing or of another kind, and files that unfold without end."""

import math
import time
import zipfile

import pytest
import torch
from toy import runner_arguments

from mm_runner import CheckpointError, ConfigError, Runner
from mm_runner.checkpoint import (
    latest_readable,
    load_checkpoint_file,
    save_checkpoint_file,
)
from mm_runner.config import Config
from mm_runner.tools import convert_mmengine_checkpoint

MISSING = object()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint from within the second epoch."""
    folder = tmp_path_factory.mktemp("saved")
    hooks = {"checkpoint": {"interval": 4, "by_epoch": False}}
    adam = {"optimizer": {"type": "AdamW", "lr": 0.01}}
    Runner(**runner_arguments(folder, default_hooks=hooks, optim_wrapper=adam)).train()
    return load_checkpoint_file(folder / "iter_8.pth")


def changed(value, path, new):
    """A copy in which something else, or nothing, stands at ``path``."""
    key, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest:
        copy[key] = changed(copy[key], rest, new)
    elif new is MISSING:
        del copy[key]
    else:
        copy[key] = new
    return copy


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("data",), MISSING),
        (("data", 0, "epoch"), math.nan),
        (("data", 0, "iter"), 10**30),
        (("data", 0, "pass"), MISSING),
        (("data", 0, "position", "batch"), -1),
        (("meta",), []),
        (("state_dict",), torch.ones(1)),
        (("rng",), [{"python": 1}]),
        (("optimizer", "param_groups", 0, "betas"), 2.0),
    ],
)
def test_an_entry_that_cannot_be_right_is_named(saved, tmp_path, path, new):
    save_checkpoint_file(changed(saved, path, new), tmp_path / "changed.pth")
    adam = {"optimizer": {"type": "AdamW", "lr": 0.01}}
    start = {"load_from": str(tmp_path / "changed.pth"), "resume": True}
    with pytest.raises(CheckpointError, match=path[-1]) as caught:
        Runner(**runner_arguments(tmp_path / "run", **start, optim_wrapper=adam)).train()
    assert len(str(caught.value).splitlines()) == 1


def test_a_newest_file_of_another_structure_is_passed_over(saved, tmp_path):
    save_checkpoint_file(saved, tmp_path / "epoch_1.pth")
    save_checkpoint_file(changed(saved, ("data",), MISSING), tmp_path / "epoch_2.pth")
    told = []
    path, _ = latest_readable(tmp_path, told.append)
    assert path.name == "epoch_1.pth"
    assert len(told) == 1
    assert "epoch_2.pth cannot be resumed from: data" in told[0]


def laughs():
    value = ["ha"]
    for _ in range(40):
        value = [value] * 10
    return value


def deep():
    value = []
    for _ in range(100):
        value = [value]
    return value


def circle():
    value = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (laughs, "damaged: it unfolds to "),
        (deep, "damaged: it is nested deeper than 64 levels"),
        (circle, "damaged: it contains itself"),
        # torch's own loader takes none beyond a length.
        (lambda: 10**5000, "it holds an integer of 16,610 bits|something besides tensors"),
    ],
    ids=["laughs", "deep", "circle", "digits"],
)
def test_what_unfolds_without_end_is_refused_at_once(tmp_path, make, reason):
    path = tmp_path / "a.pth"
    torch.save({"state_dict": {}, "meta": {"cfg": make()}}, path)
    for read in (load_checkpoint_file, lambda path: convert_mmengine_checkpoint(path, path)):
        began = time.monotonic()
        with pytest.raises(CheckpointError, match=rf"a\.pth.*({reason})"):
            read(path)
        assert time.monotonic() - began < 2


def test_an_archive_that_unpacks_to_more_than_its_size_is_refused_unread(tmp_path):
    path = tmp_path / "a.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", bytes(50_000_000))
    for read in (load_checkpoint_file, lambda path: convert_mmengine_checkpoint(path, path)):
        with pytest.raises(CheckpointError, match=r"a\.pth unpacks to 50,000,000 bytes"):
            read(path)


LAUGHS = "a: &a [x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, after in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", LAUGHS),
        ("a.yaml", "a: &a [*a]\n"),
        ("a.yaml", f"a: {'[' * 5000}{']' * 5000}\n"),
        ("a.yaml", f"a: {'9' * 5000}\n"),
        ("a.json", f'{{"a": {"[" * 100_000}{"]" * 100_000}}}'),
        ("a.json", f'{{"a": {"9" * 5000}}}'),
    ],
    ids=["laughs", "circle", "deep", "digits", "deep-json", "digits-json"],
)
def test_a_configuration_that_unfolds_without_end_is_refused(write, name, text):
    began = time.monotonic()
    with pytest.raises(ConfigError, match=name) as caught:
        Config.fromfile(write(name, text))
    assert len(str(caught.value)) < 500
    assert time.monotonic() - began < 5
