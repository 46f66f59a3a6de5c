import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from toy import needs_torch_2_4

from mm_compile import (
    CacheFileError,
    can_compile,
    compile_model,
    pack_cache,
    unpack_cache,
)
from mm_compile._torch import torch_version

SUPPORT = can_compile()
needs_inductor = pytest.mark.skipif(not SUPPORT.ok, reason=str(SUPPORT.reason))
pytestmark = [
    needs_inductor,
    needs_torch_2_4,
    # Its own imports warn, of another thing in every version of torch.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Product(nn.Module):
    """Compiles without any C++ of its own, which is quick."""

    def __init__(self, size=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, size))

    def forward(self, inputs):
        return inputs @ self.weight


@pytest.fixture
def counted():
    """``counted()`` tells hits and misses since it was last called."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 - imports dynamo

    def count():
        hits, misses = (counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss"))
        counters.clear()
        return hits, misses

    counters.clear()
    return count


def run_once(directory, model=None, **cfg):
    """Compile a model as a new process would, call it, and undo."""
    torch._dynamo.reset()
    model = model or Product()
    handle = compile_model(model, {"cache": directory, **cfg})
    with torch.no_grad():
        outputs = model(torch.ones(3, 4))
    handle.undo()
    return outputs


def files_in(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def break_code(directory, code="raise ImportError('no GLIBC_9.99')"):
    """Make the generated modules of a cache fail, and return one of them."""
    paths = [path for path in files_in(directory) if path.suffix == ".py"]
    for path in paths:
        path.write_text(f"{code}\n")
    # Inductor writes modules from graphs, unless they are there.
    return paths[0]


SCRIPT = """
import json, logging, sys
import torch
logging.basicConfig(level=logging.INFO, format="%(message)s")
sys.path.insert(0, sys.argv[2])
from test_cache_warm import Product
from mm_compile import compile_model
torch.set_num_threads(1)
model = torch.nn.Sequential(Product(), torch.nn.ReLU())
compile_model(model, {"cache": sys.argv[1]})
loss = model(torch.linspace(-1, 1, 20).view(5, 4)).sum()
loss.backward()
from torch._dynamo.utils import counters
print(json.dumps([counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]))
print(json.dumps([loss.item(), model[0].weight.grad.tolist()]))
"""


def run_process(directory, temporary):
    tests = Path(__file__).parent
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, directory, tests]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    counts, numbers = map(json.loads, done.stdout.splitlines()[-2:])
    return counts, numbers, done.stderr


def test_training_starts_warm_in_a_new_process_at_another_path_of_another_machine(
    tmp_path,
):
    first, second, machine = tmp_path / "first", tmp_path / "second", tmp_path / "machine"
    counts, cold, log = run_process(first, tempfile.gettempdir())
    assert counts == [0, 2]
    assert "holds no code yet" in log
    pack_cache(first, tmp_path / "cache.zip")
    shutil.rmtree(first)
    unpack_cache(tmp_path / "cache.zip", second)
    before = {path: path.read_bytes() for path in files_in(second) if path.suffix == ".so"}
    assert before
    # Another machine: nothing that torch keeps in temporary folders is there.
    machine.mkdir()
    counts, warm, log = run_process(second, machine)
    assert counts == [2, 0]
    assert warm == cold
    assert "holds code" in log
    # Nothing was compiled: neither a library that inductor missed, nor the headers for one.
    libraries = [path for path in files_in(second) if path.suffix == ".so"]
    assert {path: path.read_bytes() for path in libraries} == before
    assert not list(machine.rglob("*.gch"))


def test_it_computes_what_eager_computes_and_leaves_the_process_as_it_was(
    tmp_path, monkeypatch, counted
):
    from torch._inductor import codecache, config  # noqa: PLC0415 - loaded only to compile

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "/some/where")
    run_once(None)  # torch sets variables of its own
    counted()
    environment, settings = dict(os.environ), config.fx_graph_cache
    functions = dict(vars(codecache))
    expected = Product()(torch.ones(3, 4))
    for _ in range(2):
        torch.testing.assert_close(run_once(tmp_path / "cache"), expected)
        assert dict(os.environ) == environment
        assert config.fx_graph_cache == settings
        changed = [name for name in functions if vars(codecache).get(name) is not functions[name]]
        assert [name for name in changed if callable(functions[name])] == []
    assert counted() == (1, 1)


def test_two_directories_in_one_process_are_both_whole(tmp_path, counted):
    first, second = tmp_path / "first", tmp_path / "second"
    run_once(first)
    run_once(second)
    assert counted() == (0, 2)
    shutil.rmtree(first)
    run_once(second)
    assert counted() == (1, 0)


@pytest.mark.skipif(torch_version() < (2, 6), reason="before torch 2.6 a process loads code once")
def test_code_that_does_not_load_is_said_and_compiled_again(tmp_path, caplog, counted):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "cache"
    expected = run_once(directory)
    path = break_code(directory)
    counted()
    torch.testing.assert_close(run_once(directory), expected)
    assert "cannot be used here and is removed" in caplog.text
    assert "ImportError: no GLIBC" in caplog.text
    assert not path.exists()
    caplog.clear()
    for counts in ((0, 1), (1, 0)):  # cold once more, then warm
        counted()
        torch.testing.assert_close(run_once(directory), expected)
        assert counted() == counts
    assert caplog.text == ""


def test_a_directory_that_fills_up_does_not_end_the_run(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "cache"
    run_once(directory)
    (folder,) = directory.iterdir()
    shutil.rmtree(folder)
    folder.write_text("no folder")  # nothing can be written in here
    expected = Product()(torch.ones(3, 4))
    torch.testing.assert_close(run_once(directory), expected)
    assert f"the cache is not used: [Errno 17] File exists: '{folder}'" in caplog.text


def open_to_group(path):
    path.chmod(path.stat().st_mode | 0o020)


def give_away(path):
    os.chown(path, 65534, -1)


IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
by_others = pytest.mark.parametrize(
    "hand_over",
    [
        open_to_group,
        pytest.param(give_away, marks=pytest.mark.skipif(not IS_ROOT, reason="needs root")),
    ],
)


@pytest.mark.skipif(sys.platform == "win32", reason="needs permissions of POSIX")
@pytest.mark.usefixtures("inductor_cache")
@by_others
@pytest.mark.parametrize("level", ["directory", "folder", "file"])
def test_code_that_others_can_write_does_not_run(tmp_path, caplog, level, hand_over):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory, marker = tmp_path / "deep" / "cache", tmp_path / "marker"
    before = os.umask(0)
    try:
        expected = run_once(directory)
    finally:
        os.umask(before)
    (folder,) = directory.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o700
    code = f"open({str(marker)!r}, 'w').close()\nraise ImportError"
    path = break_code(directory, code)
    if level == "file":
        folder.chmod(0o755)  # others can reach what lies in it
    hand_over({"directory": directory, "folder": folder, "file": path}[level])
    torch.testing.assert_close(run_once(directory), expected)
    assert not marker.exists()
    (message,) = caplog.messages
    assert "lets group or others write" in message or "belongs to user 65534" in message
    assert "pack_cache" in message
    with pytest.raises(CacheFileError, match=r"is not packed: code in .* is not trusted"):
        pack_cache(directory, tmp_path / "cache.zip")
