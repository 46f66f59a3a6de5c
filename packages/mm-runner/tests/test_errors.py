import pytest

import mm_runner
from mm_runner.errors import (
    CheckpointError,
    CheckpointWriteError,
    ComponentNotFoundError,
    ConfigError,
    MMRunnerError,
    ModelOutputError,
    WorkDirError,
    did_you_mean,
)


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (ConfigError, ValueError),
        (ComponentNotFoundError, LookupError),
        (WorkDirError, OSError),
        (CheckpointError, RuntimeError),
        (CheckpointWriteError, CheckpointError),
        (ModelOutputError, TypeError),
    ],
    ids=["config", "component", "work-dir", "checkpoint", "checkpoint-write", "model-output"],
)
def test_errors_are_caught_by_our_base_and_by_the_builtin(error, builtin):
    assert issubclass(error, MMRunnerError)
    assert issubclass(error, builtin)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SDG", " Did you mean 'SGD'?"),
        ("adam", " Did you mean 'Adam' or 'AdamW'?"),
        ("entirely different", ""),
    ],
    ids=["swapped", "case", "far"],
)
def test_did_you_mean_names_what_is_near(name, hint):
    assert did_you_mean(name, ["SGD", "Adam", "AdamW"]) == hint


def test_did_you_mean_can_be_told_to_name_only_what_is_very_near():
    assert did_you_mean("data_root", ["data_preprocessor"]) != ""
    assert did_you_mean("data_root", ["data_preprocessor"], cutoff=0.8) == ""


def test_errors_and_runner_are_the_packages_public_names():
    assert dir(mm_runner) == sorted(mm_runner.__all__)
    assert all(hasattr(mm_runner, name) for name in mm_runner.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Runnner'"):
        mm_runner.Runnner  # noqa: B018
