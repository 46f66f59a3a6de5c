import dataclasses
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from mm_compile import (
    CacheFileError,
    ConfigError,
    can_compile,
    compile_model,
    pack_cache,
    unpack_cache,
)
from mm_compile._cache._bundle import Bundle, list_bundles, read_bundle, write_bundle
from mm_compile._cache._key import CacheKey
from mm_compile._cache._shelf import Shelf

SUPPORT = can_compile()
IS_NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
pytestmark = [
    pytest.mark.skipif(not (SUPPORT.ok and IS_NEW), reason=str(SUPPORT.reason or "old torch")),
    # Its own imports warn, of another thing in every version of torch.
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


# Where torch may find headers that it has compiled before, which takes long.
REAL_TEMPORARY_FOLDER = tempfile.gettempdir()


class Product(nn.Module):
    """Compiles without any C++ of its own, which is quick."""

    def __init__(self, size=4):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, size))

    def forward(self, inputs):
        return inputs @ self.weight


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


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


def bundles_in(directory):
    return [path for folder in directory.iterdir() for path in list_bundles(folder)]


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
from torch._inductor import codecache
hash_sources, hashed = codecache.build_code_hash, []
codecache.build_code_hash = lambda *args: [hashed.append(1), hash_sources(*args)]
loss = model(torch.linspace(-1, 1, 20).view(5, 4)).sum()
loss.backward()
from torch._dynamo.utils import counters
print(json.dumps(bool(hashed)))
print(json.dumps([counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")]))
print(json.dumps([loss.item(), model[0].weight.grad.tolist()]))
"""


def run_process(directory, temporary):
    tests = Path(__file__).parent
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, directory, tests]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    has_hashed, counts, numbers = map(json.loads, done.stdout.splitlines()[-3:])
    return counts, numbers, done.stderr, has_hashed


def test_training_starts_warm_in_a_new_process_at_another_path_of_another_machine(
    tmp_path,
):
    first, second, machine = tmp_path / "first", tmp_path / "second", tmp_path / "machine"
    counts, cold, log, has_hashed = run_process(first, REAL_TEMPORARY_FOLDER)
    assert counts == [0, 2]
    assert has_hashed
    assert "has code of 0 graphs for this run" in log
    pack_cache(first, tmp_path / "cache.zip")
    shutil.rmtree(first)
    unpack_cache(tmp_path / "cache.zip", second)
    before = bundles_in(second)
    # Another machine: nothing that torch keeps in temporary folders is there.
    machine.mkdir()
    counts, warm, log, has_hashed = run_process(second, machine)
    assert counts == [2, 0]
    assert not has_hashed, "torch's own sources have not changed"
    assert warm == cold
    assert "has code of 0 graphs" not in log
    # Nothing was compiled: neither a library that inductor missed, nor the headers for one.
    assert bundles_in(second) == before
    assert not list(machine.rglob("*.gch"))
    assert not list(machine.glob("mm_compile_*_*"))


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
        assert list((tmp_path / "tmp").glob("mm_compile_*_*")) == []
    assert counted() == (1, 1)


def test_two_directories_in_one_process_are_both_whole(tmp_path, counted):
    first, second = tmp_path / "first", tmp_path / "second"
    run_once(first)
    run_once(second)
    assert counted() == (0, 2)
    shutil.rmtree(first)
    run_once(second)
    assert counted() == (1, 0)


def test_another_config_does_not_use_it(tmp_path, counted):
    run_once(tmp_path / "cache")
    run_once(tmp_path / "cache", options={"max_fusion_size": 8})
    assert counted() == (0, 2)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_code_of_settings_that_no_mark_tells_apart_lies_side_by_side(tmp_path, counted):
    from torch._inductor import config  # noqa: PLC0415 - loaded only to compile

    directory = tmp_path / "cache"
    run_once(directory)
    for expected in ((0, 1), (1, 0)):
        counted()
        with config.patch(max_fusion_size=32):
            run_once(directory)
        assert counted() == expected
        run_once(directory)
        assert counted() == (1, 0)
    assert len(bundles_in(directory)) == 2


def test_what_is_damaged_or_foreign_is_ignored_and_said(tmp_path, caplog, counted):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "cache"
    expected = run_once(directory)
    (path,) = bundles_in(directory)
    bundle = read_bundle(path)
    path.write_bytes(path.read_bytes()[:-7])
    other = dataclasses.replace(bundle.key, facts={**bundle.key.facts, "cpu": "another"})
    foreign = path.with_name(write_bundle(path.parent, dataclasses.replace(bundle, key=other)))
    counted()
    torch.testing.assert_close(run_once(directory), expected)
    assert counted() == (0, 1)
    assert f"2 files in {path.parent} are ignored; 1 damaged ones are removed" in caplog.text
    assert not path.exists()
    assert foreign.exists()
    caplog.clear()
    torch.testing.assert_close(run_once(directory), expected)
    assert counted() == (1, 0)
    (message,) = caplog.messages
    assert message.startswith(f"compile: 1 files in {path.parent} are ignored ({foreign.name[:12]}")


def test_what_is_damaged_stays_in_a_directory_that_can_only_be_read(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "mm_compile")
    key = CacheKey({"torch": "2.13.0+cpu"}, {})
    path = tmp_path / key.name / write_bundle(tmp_path / key.name, Bundle(key, ["m"], {}))
    path.write_bytes(b"half")
    Shelf(tmp_path, key, is_writable=False).close()
    assert path.exists()
    assert "1 files in" in caplog.text
    assert "removed" not in caplog.text


@pytest.mark.parametrize(
    ("error", "num_kept"), [(KeyboardInterrupt, 0), (SystemExit, 0), (RuntimeError, 1)]
)
def test_what_a_compiler_may_still_be_writing_is_not_kept(tmp_path, error, num_kept):
    key = CacheKey({"torch": "2.13.0+cpu"}, {})
    shelf = Shelf(tmp_path, key)
    with suppress(error), shelf.entered():
        Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "half.so").write_bytes(b"half")
        raise error
    shelf.close()
    assert len(list_bundles(tmp_path / key.name)) == num_kept


def test_code_that_does_not_load_is_said_and_compiled_again(tmp_path, caplog, counted):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "cache"
    expected = run_once(directory)
    (path,) = bundles_in(directory)
    bundle = read_bundle(path)
    path.unlink()
    broken = {
        name: b"raise ImportError('no GLIBC_9.99')\n" if name.endswith(".py") else content
        for name, content in bundle.files.items()
    }
    write_bundle(path.parent, dataclasses.replace(bundle, files=broken))
    counted()
    torch.testing.assert_close(run_once(directory), expected)
    assert "cannot be used here and is compiled again: ImportError: no GLIBC" in caplog.text
    caplog.clear()
    counted()
    torch.testing.assert_close(run_once(directory), expected)
    assert caplog.text == ""
    assert counted() == (1, 0)


@pytest.mark.usefixtures("inductor_cache")
def test_where_no_folder_can_be_made_any_more_the_run_goes_on_without_a_cache(tmp_path, caplog):
    directory = tmp_path / "cache"
    expected = run_once(directory)
    (path,) = bundles_in(directory)
    bundle = read_bundle(path)
    path.unlink()
    # While it fails to load, the temporary folder goes.
    missing = tmp_path / "missing"
    code = f"import tempfile\ntempfile.tempdir = {str(missing)!r}\nraise ImportError\n"
    broken = {
        name: code.encode() if name.endswith(".py") else content
        for name, content in bundle.files.items()
    }
    path = path.with_name(write_bundle(path.parent, dataclasses.replace(bundle, files=broken)))
    torch._dynamo.reset()
    model = nn.Sequential(Product())
    with torch.no_grad():
        handle = compile_model(model[0], {"cache": directory})
        for size in (3, 5):  # another graph, too
            inputs = torch.ones(size, 4)
            torch.testing.assert_close(model(inputs), inputs @ torch.ones(4, 4))
        handle.undo()
    torch.testing.assert_close(expected, torch.full((3, 4), 4.0))
    assert "compile: the cache is not used any more: " in caplog.text
    assert str(missing) in caplog.text
    assert bundles_in(directory) == [path]


def test_another_place_of_torch_is_told(tmp_path, caplog, counted):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory = tmp_path / "cache"
    run_once(directory)
    (path,) = bundles_in(directory)
    bundle = read_bundle(path)
    path.unlink()
    key = dataclasses.replace(bundle.key, places={**bundle.key.places, "torch": "/opt/torch"})
    write_bundle(path.parent, dataclasses.replace(bundle, key=key))
    counted()
    run_once(directory)
    assert "torch lay in /opt/torch, here in" in caplog.text
    assert "its C++ is built again" in caplog.text
    assert counted() == (1, 0)  # the graph is used all the same
    caplog.clear()
    run_once(directory)
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
    assert f"nothing more is kept in {folder}" in caplog.text


def test_a_directory_that_can_only_be_read_is_read(tmp_path, caplog, counted, monkeypatch):
    directory = tmp_path / "cache"
    outputs = run_once(directory)
    before = sorted(bundles_in(directory))
    assert counted() == (0, 1)
    # Root, who may run these tests, may write anywhere.
    monkeypatch.setattr(
        "mm_compile._cache._directory._is_allowed", lambda _path, access: access == os.R_OK
    )
    assert torch.equal(run_once(directory), outputs)
    assert counted() == (1, 0)
    run_once(directory, nn.Sequential(Product(), Product()))
    assert counted()[1] == 1  # a new graph is compiled
    assert sorted(bundles_in(directory)) == before
    lines = [line for line in caplog.messages if "can only be read" in line]
    assert len(lines) == 2  # once for each model
    with pytest.raises(ConfigError, match="is not writable"):
        compile_model(Product(), {"cache": tmp_path / "missing"})


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
@pytest.mark.parametrize("level", ["directory", "folder", "bundle"])
def test_code_that_others_can_write_does_not_run_unless_it_is_trusted(
    tmp_path, caplog, level, hand_over
):
    caplog.set_level(logging.WARNING, "mm_compile")
    directory, marker = tmp_path / "deep" / "cache", tmp_path / "marker"
    before = os.umask(0)
    try:
        expected = run_once(directory)
    finally:
        os.umask(before)
    (path,) = bundles_in(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    assert not (path.parent.stat().st_mode | path.stat().st_mode) & 0o022
    bundle = read_bundle(path)
    path.unlink()
    code = f"open({str(marker)!r}, 'w').close()\nraise ImportError\n".encode()
    files = {name: code if name.endswith(".py") else old for name, old in bundle.files.items()}
    path = path.with_name(write_bundle(path.parent, dataclasses.replace(bundle, files=files)))
    hand_over({"directory": directory, "folder": path.parent, "bundle": path}[level])
    torch.testing.assert_close(run_once(directory), expected)
    assert not marker.exists()
    (message,) = caplog.messages
    assert "lets group or others write" in message or "belongs to user 65534" in message
    if level != "bundle":
        assert "trusted=True" in message
        with pytest.raises(CacheFileError, match=r"is not packed: code in .* is not trusted"):
            pack_cache(directory, tmp_path / "cache.zip")
    trusted = {"dir": directory, "trusted": True}
    torch.testing.assert_close(run_once(trusted), expected)
    # A bundle that is not trusted was compiled afresh, and the newest one is used.
    assert marker.exists() == (level != "bundle")
    assert pack_cache(trusted, tmp_path / "cache.zip") >= 1


def test_regions_are_kept_too(tmp_path, counted):
    for expected in ((0, 2), (2, 0)):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(Product(), Product())
        handle = compile_model(model, {"cache": tmp_path / "cache", "regions": "auto"})
        model(torch.ones(3, 4)).sum().backward()
        model(torch.ones(3, 4)).sum().backward()
        handle.undo()
        assert counted() == expected
