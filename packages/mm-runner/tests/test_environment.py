"""What a run sets of its process, before anything is built."""

import os

import pytest
import torch

from mm_runner.runner._environment import fix_cublas_workspace

NAME = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def workspace(monkeypatch):
    """``workspace(value, cuda=...)`` sets the variable, ``None`` unsets it; undone later."""

    def setting(value, *, cuda="13.0"):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setenv(NAME, str(value))  # also where it is unset next, so that it is undone
        if value is None:
            monkeypatch.delenv(NAME)

    return setting


def test_determinism_fixes_the_workspaces_of_cublas_before_the_device_is_touched(
    workspace, make_runner, monkeypatch
):
    workspace(None)
    seen = []

    def set_up(*_):
        seen.append(os.environ.get(NAME))
        raise InterruptedError

    monkeypatch.setattr("mm_runner.runner._runner.set_up_process", set_up)
    with pytest.raises(InterruptedError):
        make_runner(randomness={"seed": 0, "deterministic": True})
    assert seen == [":4096:8"]


def test_what_the_user_has_set_of_cublas_stays(workspace):
    workspace(":16:8")
    fix_cublas_workspace({"deterministic": True})
    assert os.environ[NAME] == ":16:8"


@pytest.mark.parametrize(
    ("randomness", "cuda"),
    [({"deterministic": True}, None), ({"deterministic": False}, "13.0"), (None, "13.0")],
    ids=["no-cuda", "not-asked", "nothing"],
)
def test_cublas_is_left_alone_otherwise(workspace, randomness, cuda):
    workspace(None, cuda=cuda)
    fix_cublas_workspace(randomness)
    assert NAME not in os.environ
