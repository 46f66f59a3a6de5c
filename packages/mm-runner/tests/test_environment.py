"""What a run sets of its process, before anything is built."""

import json
import os
import sys

import pytest
from strict_task import strict_config
from toy import NO_VALIDATION

import mm_dist
from mm_runner.cli import main
from mm_runner.runner._environment import fix_cublas_workspace

NAME = "CUBLAS_WORKSPACE_CONFIG"


@pytest.fixture
def workspace(monkeypatch):
    """``workspace(value)`` sets the variable, ``None`` unsets it; undone later."""

    def setting(value):
        monkeypatch.setenv(NAME, str(value))  # also where it is unset next, so that it is undone
        if value is None:
            monkeypatch.delenv(NAME)

    return setting


def test_determinism_fixes_the_workspaces_of_cublas_before_the_device_is_touched(
    workspace, make_runner, monkeypatch
):
    workspace(None)
    seen = []

    def set_up(*_, **__):
        seen.append(os.environ.get(NAME))
        raise InterruptedError

    monkeypatch.setattr(mm_dist, "init_dist", set_up)
    with pytest.raises(InterruptedError):
        make_runner(randomness={"seed": 0, "deterministic": True})
    assert seen == [":4096:8"]


def test_what_the_user_has_set_of_cublas_stays(workspace):
    workspace(":16:8")
    fix_cublas_workspace({"deterministic": True})
    assert os.environ[NAME] == ":16:8"


@pytest.mark.parametrize(
    "randomness", [{"deterministic": False}, None], ids=["not-asked", "nothing"]
)
def test_cublas_is_left_alone_otherwise(workspace, randomness):
    workspace(None)
    fix_cublas_workspace(randomness)
    assert NAME not in os.environ


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("env_cfg", {"cudnn_bench": True}, "env_cfg.cudnn_bench: unknown key"),
        ("env_cfg", {"mp_cfg": {"mp_start_method": "forc"}}, "env_cfg.mp_cfg.mp_start_method: "),
        ("env_cfg", {"resource_limit": "many"}, "env_cfg.resource_limit: an integer"),
        ("env_cfg", {"dist_cfg": {"port": 99999}}, "env_cfg.dist_cfg.port: "),
        ("env_cfg", {"npu_cfg": {"jit_compile": "maybe"}}, "env_cfg.npu_cfg.jit_compile: "),
        ("launcher", "slrum", "launcher: launcher='slrum' is not known"),
        ("randomness", {"seed": -1}, "randomness.seed: an integer from 0"),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" not in value else "",
)
def test_check_and_train_refuse_alike(tmp_path, monkeypatch, capsys, key, value, path):
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = {**strict_config(), key: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    messages = []
    for command in ("check", "train"):
        assert main([command, str(tmp_path / "config.json")]) == 1
        messages.append(capsys.readouterr().err)
    assert messages[0] == messages[1]
    assert path in messages[0]


def test_no_launcher_means_auto_for_check_and_train_alike(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", list(sys.path))
    work_dir = str(tmp_path / "work")
    config = {**strict_config(), "launcher": None, "work_dir": work_dir, "compile": False}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["check", str(tmp_path / "config.json")]) == 0
    main(["train", str(tmp_path / "config.json")])
    assert "training began" in capsys.readouterr().err  # by which the model ends it


@pytest.mark.parametrize(
    "dist_cfg", [{"backend": "smddp"}, {"device_type": "privateuseone"}], ids=["backend", "device"]
)
@pytest.mark.usefixtures("group_of_one")
def test_a_group_that_exists_may_be_of_any_kind(make_runner, dist_cfg):
    runner = make_runner(env_cfg={"dist_cfg": dist_cfg}, **NO_VALIDATION)
    assert runner.device.type == "cpu"
