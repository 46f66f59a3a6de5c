"""The hash of torch's sources, which is part of every name in inductor's cache."""

import functools
import inspect
import os
import subprocess
import sys

import pytest
import torch

from mm_compile._cache._source_hash import remembering_source_hash, state_of_sources

codecache = pytest.importorskip("torch._inductor.codecache", reason="there is no inductor")
pytestmark = pytest.mark.skipif(
    not hasattr(codecache, "torch_key"), reason="inductor does not hash torch's sources"
)


def keeping_in_a_list(func):
    """Remember what a function returns, as torch 2.7 does."""
    _cache = []

    def wrapper():
        if not _cache:
            _cache.append(func())
        return _cache[0]

    return wrapper


DECORATORS = [
    pytest.param(functools.lru_cache(None), id="torch 2.4"),
    pytest.param(keeping_in_a_list, id="torch 2.7"),
    pytest.param(getattr(codecache, "torch_key_cache", keeping_in_a_list), id="as installed"),
]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Return a folder of sources in place of torch's."""
    folder = tmp_path / "torch"
    (folder / "nn").mkdir(parents=True)
    (folder / "nn" / "a.py").write_text("a = 1\n")
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(torch, "__file__", str(folder / "__init__.py"))
    return folder


@pytest.fixture(params=DECORATORS)
def new_process(request, sources, monkeypatch):
    """``new_process()`` lets torch forget; it returns a list that grows as the sources are read."""

    def start(meanwhile=lambda: None, module=codecache.__name__):
        reads = []

        def hash_sources():
            content = (sources / "nn" / "a.py").read_bytes()
            reads.append(content)
            meanwhile()
            return content

        hash_sources.__module__ = module
        monkeypatch.setattr(codecache, "torch_key", request.param(hash_sources))
        return reads

    return start


def key(known):
    original = codecache.torch_key
    with remembering_source_hash(known):
        found = codecache.torch_key()
    assert codecache.torch_key is original
    return found


def test_sources_are_hashed_once_for_all_that_share_what_is_known(new_process):
    known = {}
    reads = new_process()
    assert key(known) == key(known) == b"a = 1\n"
    assert len(reads) == 1
    assert list(known.values()) == [b"a = 1\n".hex()]
    reads = new_process()
    assert key(known) == b"a = 1\n"
    assert reads == []


def test_what_is_known_of_other_sources_does_not_count(new_process, sources):
    known = {"another state": "ffff"}
    new_process()
    assert key(known) == b"a = 1\n"
    (sources / "nn" / "a.py").write_text("a = 22\n")
    new_process()
    assert key(known) == b"a = 22\n"
    assert len(known) == 3


def test_sources_that_are_edited_after_torch_has_hashed_them_get_no_old_hash(new_process, sources):
    known = {}
    new_process()
    codecache.torch_key()
    (sources / "nn" / "a.py").write_text("a = 22\n")
    assert key(known) == b"a = 1\n", "what this process has imported is the old code"
    assert known == {}
    new_process()
    assert key(known) == b"a = 22\n"
    # A process of before, again: what is known of the new sources is not its code.
    reads = new_process()
    (sources / "nn" / "a.py").write_text("a = 333\n")
    codecache.torch_key()
    (sources / "nn" / "a.py").write_text("a = 22\n")
    assert key(known) == b"a = 333\n"
    assert len(reads) == 1


def test_sources_that_torch_is_hashing_in_the_background_count_as_hashed(new_process, sources):
    new_process()
    if not hasattr(codecache.torch_key, "prefetch"):
        pytest.skip("this torch does not do so")
    codecache.torch_key.prefetch()
    inspect.getclosurevars(codecache.torch_key).nonlocals["_future"].result()
    (sources / "nn" / "a.py").write_text("a = 22\n")
    known = {}
    assert key(known) == b"a = 1\n"
    assert known == {}


def test_sources_that_are_edited_after_they_were_hashed_here_get_no_old_hash(new_process, sources):
    known, others = {}, {}
    new_process()
    key(known)
    (sources / "nn" / "a.py").write_text("a = 22\n")
    assert key(others) == b"a = 1\n"
    assert others == known
    new_process()
    assert key(others) == b"a = 22\n"


def test_sources_that_are_edited_while_they_are_hashed_get_no_hash(new_process, sources):
    known = {}
    new_process(lambda: (sources / "nn" / "a.py").write_text("a = 22\n"))
    assert key(known) == b"a = 1\n"
    assert known == {}


def test_a_file_that_torch_ignores_does_not_end_the_run(new_process, sources):
    known = {}
    (sources / "nn" / ".#a.py").symlink_to("me@host.1234:99")  # an editor's, of unsaved changes
    assert state_of_sources(sources) is None
    for _ in range(2):
        reads = new_process()
        assert key(known) == b"a = 1\n"
        assert len(reads) == 1
    assert known == {}


def test_a_function_of_somebody_else_may_hash_other_files(new_process):
    known = {}
    for _ in range(2):
        reads = new_process(module="torch_of_a_device.codecache")
        assert key(known) == b"a = 1\n"
        assert len(reads) == 1
    assert known == {}


def test_an_error_puts_torchs_own_function_back(new_process):
    reads = new_process()
    original = codecache.torch_key
    with pytest.raises(ZeroDivisionError), remembering_source_hash({}):
        raise ZeroDivisionError
    assert codecache.torch_key is original
    assert not reads


CHANGES = ["content", "time", "new file", "lost file", "elsewhere"]
# Of the kinds that some version of torch hashes.
FILES = ["nn/a.py", "_C.so", "_inductor/interface.cpp", "_inductor/script.ld", "_inductor/prefix.h"]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", FILES)
def test_any_change_of_the_sources_is_another_state(sources, name, change):
    file = sources / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("a = 1\n")
    before = state_of_sources(sources)
    assert state_of_sources(sources) == before
    if change == "content":
        file.write_text("a = 10\n")
    elif change == "time":  # of content of the same length
        os.utime(file, ns=(0, 0))
    elif change == "new file":
        file.with_name(f"b{file.suffix}").write_text("")
    elif change == "lost file":
        file.unlink()
    else:
        sources = sources.rename(sources.with_name("other"))
    assert state_of_sources(sources) not in (None, before)


# In a new process, where torch has hashed nothing yet.
OPENED = """
import sys
from pathlib import Path
import torch
from torch._inductor import codecache
from mm_compile._cache._source_hash import _list_sources, remembering_source_hash

opened, names = set(), {"open"}
sys.addaudithook(lambda event, args: event in names and opened.add(str(args[0])))
known = {}
with remembering_source_hash(known):
    codecache.torch_key()
names.clear()
root = str(Path(torch.__file__).parent)
looked_at = {line.rsplit(" ", 2)[0] for line in _list_sources(root)}
opened = {path for path in opened if path.startswith(root) and not path.endswith(".pyc")}
print(len(known), len(opened) > 100, opened - looked_at)
"""


def test_everything_that_inductor_hashes_is_looked_at():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", OPENED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1 True set()\n"


# Whether that is so is read from how torch keeps the hash, which no version promises.
HASHED = """
from torch._inductor import codecache
from mm_compile._cache._source_hash import remembering_source_hash
codecache.torch_key()
known = {}
with remembering_source_hash(known):
    codecache.torch_key()
print(known)
"""


def test_what_torch_itself_has_hashed_before_is_not_kept():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HASHED], capture_output=True, text=True, check=False
    )
    assert done.stdout == "{}\n", done.stderr
