import os

import pytest

from mm_compile import pack_cache
from mm_compile._cache import _shelf
from mm_compile._cache._bundle import Bundle, list_bundles, list_folders, write_bundle
from mm_compile._cache._key import CacheKey
from mm_compile._cache._prune import prune
from mm_compile._cache._shelf import Shelf

OLD = CacheKey({"torch": "2.12.0"}, {})
KEY = CacheKey({"torch": "2.13.0+cpu"}, {})


@pytest.fixture
def cache(tmp_path):
    """Return a directory with a bundle for each of five graphs, the first one used first."""
    directory = tmp_path / "cache"
    for when, (key, mark) in enumerate(
        [(OLD, "a"), (KEY, "b"), (OLD, "c"), (KEY, "d"), (KEY, "e")]
    ):
        name = write_bundle(directory / key.name, Bundle(key, [mark], {"x": os.urandom(1000)}))
        os.utime(directory / key.name / name, (1e9 + when, 1e9 + when))
    return directory


def marks(directory, key=KEY):
    shelf = Shelf(directory, key, is_writable=False)
    try:
        return shelf.marks
    finally:
        shelf.close()


def sizes(directory):
    return [path.stat().st_size for each in list_folders(directory) for path in list_bundles(each)]


def test_the_longest_unused_go_first_whatever_they_are_for(cache, caplog):
    caplog.set_level("INFO", "mm_compile")
    assert prune(cache) == 0
    assert caplog.messages == []
    assert prune(cache, max_bundles=2) == 3
    assert "5 bundles" in caplog.messages[0]
    assert (marks(cache), marks(cache, OLD)) == ({"d", "e"}, set())


def test_bytes_are_bounded_too(cache):
    limit = 3 * max(sizes(cache)) + 1
    assert prune(cache, max_bytes=limit) == 2
    assert sum(sizes(cache)) <= limit
    assert marks(cache) == {"d", "e"}
    assert prune(cache, max_bytes=0) == 3
    assert sizes(cache) == []


def test_what_is_used_stays(cache):
    shelf = Shelf(cache, KEY)
    shelf.note_use("b")
    shelf.close()
    prune(cache, max_bundles=2)
    assert marks(cache) == {"b", "e"}


def test_nothing_else_in_the_directory_is_touched(cache):
    others = [cache / "notes.txt", cache / KEY.name / "readme.bundle", cache / "other" / "x"]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"mine")
    prune(cache, max_bundles=0)
    assert sizes(cache) == []
    assert all(path.read_bytes() == b"mine" for path in others)


def test_whoever_writes_prunes(cache, monkeypatch):
    seen = []
    monkeypatch.setattr(_shelf, "prune", seen.append)
    shelf = Shelf(cache, KEY)
    for number in range(_shelf._PRUNE_EVERY + 1):
        shelf.publish(f"graph {number}")
    shelf.close()
    assert seen == [cache, cache]


def test_bundles_that_another_job_removes_meanwhile_are_no_damage(cache, caplog, monkeypatch):
    gone = cache / KEY.name / ("0" * 64 + ".bundle")
    present = _shelf.list_bundles
    monkeypatch.setattr(_shelf, "list_bundles", lambda folder: [gone, *present(folder)])
    assert marks(cache) == {"b", "d", "e"}
    assert not caplog.messages
    monkeypatch.setattr("mm_compile._cache._pack.list_bundles", lambda f: [gone, *present(f)])
    monkeypatch.setattr("mm_compile._cache._pack._is_whole", lambda _path, **_: True)
    assert pack_cache(cache, cache.parent / "cache.zip") == 5
