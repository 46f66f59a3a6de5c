"""Checkpoints whose entries are missing or of another kind, and files that unfold without end."""

import math
import time
import zipfile
from itertools import cycle, islice

import pytest
import torch
from toy import runner_arguments

from mm_amp import MMAmpError
from mm_runner import CheckpointError, ConfigError, Runner
from mm_runner.checkpoint import (
    latest_readable,
    load_checkpoint_file,
    save_checkpoint_file,
)
from mm_runner.config import Config
from mm_runner.errors import MMRunnerError
from mm_runner.tools import convert_mmengine_checkpoint

ARGUMENTS = {
    "optim_wrapper": {"optimizer": {"type": "AdamW", "lr": 0.01}},
    "param_scheduler": [
        {"type": "CosineAnnealingLR", "by_epoch": False, "end": 24},
        {"type": "ReduceOnPlateauLR", "monitor": "accuracy", "rule": "greater"},
        {"type": "ExponentialLR", "gamma": 0.9},
    ],
    "default_hooks": {
        "checkpoint": {
            "type": "CheckpointHook",
            "interval": 4,
            "by_epoch": False,
            "save_best": "accuracy",
        }
    },
    "custom_hooks": [
        {"type": "EMAHook"},
        {"type": "EarlyStoppingHook", "monitor": "accuracy", "rule": "greater"},
        {"type": "GradientSpikeHook"},
    ],
}
SCALER = {
    "scale": 65536.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 8,
}
MISSING = object()
OTHERS = [
    *(MISSING, None, "x", -1, math.nan, math.inf, 10**30, [], {}, 0.5, True),
    *([{}], torch.ones(3), "x" * 5000, [[]], {"x": {}}),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint from within the second epoch, with what a run can keep."""
    folder = tmp_path_factory.mktemp("saved")
    Runner(**runner_arguments(folder, **ARGUMENTS)).train()
    checkpoint = load_checkpoint_file(folder / "iter_8.pth")
    checkpoint["optimizer"]["loss_scaler"] = dict(SCALER)
    return checkpoint


def resume(checkpoint, folder):
    save_checkpoint_file(checkpoint, folder / "changed.pth")
    arguments = {"load_from": str(folder / "changed.pth"), "resume": True, **ARGUMENTS}
    runner = Runner(**runner_arguments(folder / "run", **arguments))
    runner.train()
    return runner


def paths(value, path=()):
    """Every path of keys, of long lists the first two."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, (list, tuple)):
        items = islice(enumerate(value), 2)
    for key, item in items:
        yield from paths(item, (*path, key))


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


ENTRIES = [
    *("meta", "state_dict", "rng", "data", "message_hub", "hooks", "param_schedulers"),
    *("ema_state_dict", "checkpoint_hook"),
]
PARTS = [*((entry,) for entry in ENTRIES), ("optimizer", "state"), ("optimizer", "param_groups")]


@pytest.mark.parametrize("part", [*PARTS, ("optimizer", "loss_scaler")], ids="-".join)
def test_whatever_stands_in_an_entry_a_run_resumes_or_says_what_is_wrong(saved, tmp_path, part):
    others = cycle(OTHERS)
    within = [path for path in paths(saved) if path[: len(part)] == part]
    assert within
    for path, new in zip(within, others, strict=False):
        try:
            resume(changed(saved, path, new), tmp_path)
        except (MMRunnerError, MMAmpError) as error:
            assert len(str(error).splitlines()) == 1, (path, new)  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"{path} {new}: {error!r}") from error


@pytest.mark.parametrize(
    ("path", "new"),
    [
        (("data",), MISSING),
        (("data",), []),
        (("data", 0, "epoch"), -1),
        (("data", 0, "epoch"), math.nan),
        (("data", 0, "epoch"), MISSING),
        (("data", 0, "pass"), MISSING),
        (("data", 0, "position", "batch"), 7),
        (("meta",), []),
        (("state_dict",), torch.ones(1)),
        (("optimizer", "param_groups", 0, "betas", 0), 2.0),
        (("optimizer", "state", 0, "exp_avg"), MISSING),
    ],
)
def test_an_entry_that_cannot_be_right_is_named(saved, tmp_path, path, new):
    with pytest.raises(CheckpointError, match=path[-1] if isinstance(path[-1], str) else "beta"):
        resume(changed(saved, path, new), tmp_path)


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
    assert time.monotonic() - began < 30
