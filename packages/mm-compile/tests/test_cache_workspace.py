import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mm_compile._cache._workspace import Workspace

HOLDER = """
import sys
from mm_compile._cache._workspace import Workspace
workspace = Workspace()
(workspace.path / "half.so").write_bytes(b"half")
print(workspace.path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks there")
def test_what_a_killed_process_left_goes_away_and_what_a_living_one_uses_does_not():
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    folder = Path(holder.stdout.readline().strip())
    mine, other = Workspace(), Workspace()
    assert mine.path != other.path
    assert folder.exists()
    assert mine.path.exists()
    holder.kill()
    holder.communicate()
    assert (folder / "half.so").exists()
    last = Workspace()
    assert not folder.exists()
    assert mine.path.exists()
    for each in (mine, other, last):
        each.remove()
        assert not each.path.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks there")
def test_a_folder_that_another_process_removes_meanwhile_is_no_failure(tmp_path, monkeypatch):
    first = Workspace()
    prefix = first.path.name.partition(f"_{os.getpid()}_")[0]
    first.remove()
    left, gone = (tmp_path / f"{prefix}_1_{name}" / "owner" for name in ("left", "gone"))
    left.parent.mkdir()
    left.touch()
    monkeypatch.setattr(Path, "glob", lambda *_args: iter([gone, left]))
    workspace = Workspace()
    assert workspace.path.exists()
    assert not left.parent.exists()
    workspace.remove()


@pytest.mark.skipif(sys.platform == "win32", reason="has no locks there")
def test_folders_of_other_machines_are_not_touched(tmp_path, monkeypatch):
    here = socket.gethostname
    monkeypatch.setattr(socket, "gethostname", lambda: "node/17*")
    other = Workspace()
    left = tmp_path / other.path.name.replace(f"_{os.getpid()}_", "_1_")
    assert "_node-17-_1_" in left.name
    left.mkdir()
    (left / "owner").touch()  # its lock is not seen here
    other.remove()
    monkeypatch.setattr(socket, "gethostname", here)
    Workspace().remove()
    assert left.exists()
    monkeypatch.setattr(socket, "gethostname", lambda: "node/17*")
    Workspace().remove()
    assert not left.exists()


def test_it_tells_new_and_changed_files_once_and_never_replaces_one():
    workspace = Workspace()
    workspace.put({"ab/cab.py": b"given"})
    assert workspace.take_new() == {}
    (workspace.path / "fxgraph").mkdir()
    (workspace.path / "fxgraph" / "x").write_bytes(b"new")
    for ignored in ("locks/x.lock", "ab/.1.tmp", "ab/c.o"):
        (workspace.path / ignored).parent.mkdir(exist_ok=True)
        (workspace.path / ignored).write_bytes(b"x")
    (workspace.path / "ab" / "link.so").symlink_to("/etc/passwd")
    assert workspace.take_new() == {"fxgraph/x": b"new"}
    assert workspace.take_new() == {}
    (workspace.path / "fxgraph" / "x").write_bytes(b"changed")
    assert workspace.take_new() == {"fxgraph/x": b"changed"}
    # It may be loaded, and code that is loaded must not change under a running program.
    workspace.put({"ab/cab.py": b"another"})
    assert (workspace.path / "ab" / "cab.py").read_bytes() == b"given"
    workspace.remove()


def test_inductor_works_there_only_while_it_is_entered(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/some/where")
    before = dict(os.environ)
    workspace = Workspace()
    with contextlib.suppress(ZeroDivisionError), workspace.entered():
        assert os.environ.get("TORCHINDUCTOR_CACHE_DIR") == str(workspace.path)
        # Inductor hands this to its workers, which else stay with the first folder they heard of.
        assert os.environ.get("TRITON_CACHE_DIR") == str(workspace.path / "triton")
        os.environ["TRITON_CACHE_DIR"] = "somebody sets it"
        raise ZeroDivisionError
    assert dict(os.environ) == before
    workspace.remove()
