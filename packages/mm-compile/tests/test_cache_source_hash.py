"""The hash of torch's sources, which is part of every name in inductor's cache."""

import os
import pkgutil
from pathlib import Path

import pytest
import torch

from mm_compile._cache._source_hash import (
    _list_sources,
    remembering_source_hash,
    state_of_sources,
)

codecache = pytest.importorskip("torch._inductor.codecache", reason="there is no inductor")
pytestmark = pytest.mark.skipif(
    not hasattr(codecache, "torch_key"), reason="inductor does not hash torch's sources"
)


@pytest.fixture
def torch_key(monkeypatch):
    """Count how often torch's sources are hashed."""
    calls = []

    def count():
        calls.append(1)
        return b"\1\2"

    monkeypatch.setattr(codecache, "torch_key", count)
    return calls


def test_sources_are_hashed_once_for_all_that_share_what_is_known(torch_key):
    known = {}
    original = codecache.torch_key
    for _ in range(2):  # two processes, the second of which knows what the first one found
        with remembering_source_hash(known):
            assert codecache.torch_key() == b"\1\2"
        assert codecache.torch_key is original
    assert len(torch_key) == 1
    assert list(known.values()) == ["0102"]


def test_what_is_known_of_other_sources_does_not_count(torch_key):
    known = {"another state": "ffff"}
    with remembering_source_hash(known):
        assert codecache.torch_key() == b"\1\2"
    assert len(torch_key) == 1


def test_an_error_puts_torchs_own_function_back(torch_key):
    original = codecache.torch_key
    with pytest.raises(ZeroDivisionError), remembering_source_hash({}):
        raise ZeroDivisionError
    assert codecache.torch_key is original
    assert not torch_key


@pytest.mark.parametrize("change", ["content", "time", "new file", "lost file", "elsewhere"])
def test_any_change_of_the_sources_is_another_state(tmp_path, change):
    folder = tmp_path / "torch"
    (folder / "nn").mkdir(parents=True)
    (folder / "nn" / "a.py").write_text("a = 1\n")
    (folder / "version.py").write_text("version = '1'\n")
    state_of_sources.cache_clear()
    before = state_of_sources(folder)
    file = folder / "nn" / "a.py"
    if change == "content":
        file.write_text("a = 10\n")
    elif change == "time":  # of content of the same length
        os.utime(file, ns=(0, 0))
    elif change == "new file":
        (folder / "nn" / "b.py").write_text("")
    elif change == "lost file":
        file.unlink()
    else:
        folder = folder.rename(tmp_path / "other")
    state_of_sources.cache_clear()
    assert state_of_sources(folder) != before
    state_of_sources.cache_clear()


def test_everything_that_inductor_hashes_is_looked_at():
    def modules(folders, prefix):
        for found in pkgutil.iter_modules(folders, prefix):
            spec = found.module_finder.find_spec(found.name, None)
            yield spec.origin
            if found.ispkg:
                yield from modules(spec.submodule_search_locations, f"{spec.name}.")

    root = str(Path(torch.__file__).parent)
    looked_at = {line.rsplit(" ", 2)[0] for line in _list_sources(root)}
    assert set(modules([root], "")) <= looked_at
