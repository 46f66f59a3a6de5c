import hashlib
import os
import time
import zipfile

import pytest

from mm_compile import CacheFileError, ConfigError, pack_cache, unpack_cache
from mm_compile._cache._bundle import (
    Bundle,
    BundleError,
    list_bundles,
    read_bundle,
    remove_drafts,
    write_bundle,
)
from mm_compile._cache._key import CacheKey

KEY = CacheKey({"torch": "2.13.0+cpu", "cpu": "avx2"}, {"torch": "/opt/torch"})
MANIFEST = b'{"facts": %s, "places": {}, "marks": [], "verdicts": {}, "created_s": 1}'
FILES = {"ab/cab.so": b"\x7fELF...", "fxgraph/x/y": b"graph"}


@pytest.fixture
def cache(tmp_path):
    """Return a directory with two bundles."""
    directory = tmp_path / "cache"
    for mark in ("m1", "m2"):
        write_bundle(directory / KEY.name, Bundle(KEY, [mark], FILES, {"avx2": True}))
    return directory


def test_a_bundle_comes_back_as_it_was(tmp_path):
    bundle = Bundle(KEY, ["m"], FILES, {"avx2": True}, {"as now": "00ff"}, 12.5)
    name = write_bundle(tmp_path, bundle)
    assert read_bundle(tmp_path / name) == bundle
    assert [path.name for path in list_bundles(tmp_path)] == [name]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_damage_shows_before_anything_is_read(tmp_path):
    path = tmp_path / write_bundle(tmp_path, Bundle(KEY, ["m"], FILES))
    whole = path.read_bytes()
    for broken in (whole[:-1], whole[:10], b"", whole[:50] + b"?" + whole[51:]):
        path.write_bytes(broken)
        with pytest.raises(BundleError, match="not what its name says"):
            read_bundle(path)


@pytest.mark.parametrize("name", ["../out.so", "/out.so", "a/../../out.so", "C:\\out.so"])
def test_a_bundle_cannot_name_a_path_outside(tmp_path, name):
    written = write_bundle(tmp_path, Bundle(KEY, ["m"], {name: b"x"}))
    with pytest.raises(BundleError, match="no path inside of a folder"):
        read_bundle(tmp_path / written)


def test_a_zip_of_somebody_else_is_no_bundle(tmp_path):
    for content in (
        b"no zip at all",
        zip_of(tmp_path, {"a": b"b"}),
        zip_of(tmp_path, {"manifest.json": b"[]"}),
        zip_of(tmp_path, {"manifest.json": b"[" * 100_000}),
        zip_of(tmp_path, {"manifest.json": MANIFEST % b'{"torch": "2"}'}).replace(
            # A member that is locked by a password.
            b"PK\1\2\x14\3\x14\0\0",
            b"PK\1\2\x14\3\x14\0\1",
        ),
    ):
        path = tmp_path / f"{hashlib.sha256(content).hexdigest()}.bundle"
        path.write_bytes(content)
        with pytest.raises(BundleError, match="no bundle of this package"):
            read_bundle(path)


def test_a_bundle_for_no_torch_at_all_is_for_another_one(tmp_path):
    bundle = Bundle(CacheKey({}, {}), ["m"], FILES)
    assert read_bundle(tmp_path / write_bundle(tmp_path, bundle)).key.name != KEY.name


def zip_of(folder, members):
    path = folder / "some.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path.read_bytes()


def test_what_a_killed_writer_left_is_no_bundle_and_goes_away(tmp_path):
    old, new = tmp_path / ".aa.tmp", tmp_path / ".bb.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    assert list_bundles(tmp_path) == []
    remove_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == [new]  # whose writer may be alive


def test_a_cache_moves_in_one_file(cache, tmp_path):
    file = tmp_path / "cache.zip"
    assert pack_cache(cache, file) == 2
    other = tmp_path / "other" / "place"
    assert unpack_cache(file, str(other)) == 2
    assert unpack_cache(file, other) == 0  # it is there
    names = [path.name for path in list_bundles(cache / KEY.name)]
    assert [path.name for path in list_bundles(other / KEY.name)] == names
    assert [path.name for path in other.iterdir()] == [KEY.name]


def test_packing_takes_what_is_whole_and_keeps_the_older_file_if_there_is_nothing(cache, tmp_path):
    damaged, whole = list_bundles(cache / KEY.name)
    damaged.write_bytes(b"half")
    (cache / "notes").mkdir()
    file = tmp_path / "cache.zip"
    assert pack_cache(cache, file) == 1
    content = file.read_bytes()
    whole.unlink()
    for nothing in (cache, tmp_path / "none"):
        with pytest.raises(CacheFileError, match="holds no compiled code to pack"):
            pack_cache(nothing, file)
    assert file.read_bytes() == content
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    "name",
    [
        "../evil.so",
        "/tmp/evil.so",
        f"{KEY.name}/../../evil.so",
        f"{KEY.name}/x.so",
        "evil.bundle",
        f"{KEY.name}/{'0' * 64}.bundle/",
    ],
)
def test_unpacking_refuses_members_that_packing_does_not_write(cache, tmp_path, name):
    file = tmp_path / "cache.zip"
    pack_cache(cache, file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"x")
    with pytest.raises(CacheFileError, match="which pack_cache does not write"):
        unpack_cache(file, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_unpacking_refuses_links_and_damage(cache, tmp_path):
    file, other = tmp_path / "cache.zip", tmp_path / "other"
    pack_cache(cache, file)
    with zipfile.ZipFile(file, "a") as archive:
        link = zipfile.ZipInfo(f"{KEY.name}/{'0' * 64}.bundle")
        link.external_attr = 0o120777 << 16  # how zip stores a symbolic link
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(CacheFileError, match="damaged"):
        unpack_cache(file, other)
    pack_cache(cache, file)
    content = file.read_bytes()
    for broken in (content[:100], content[:200] + b"????" + content[204:], b"", b"text"):
        file.write_bytes(broken)
        with pytest.raises(CacheFileError, match=r"no file of pack_cache, or damaged|is damaged"):
            unpack_cache(file, other)
    assert not other.exists()
    with pytest.raises(ConfigError, match=r"the directory for unpack_cache is .* is a file"):
        unpack_cache(file, file)


def test_unpacking_makes_private_files_and_refuses_bombs_and_doubles(cache, tmp_path):
    file, other = tmp_path / "cache.zip", tmp_path / "other"
    pack_cache(cache, file)
    before = os.umask(0)
    try:
        unpack_cache(file, other)
    finally:
        os.umask(before)
    assert other.stat().st_mode & 0o777 == 0o700
    assert not any(path.stat().st_mode & 0o022 for path in other.rglob("*"))
    name = f"{KEY.name}/{hashlib.sha256(b'0' * 10**7).hexdigest()}.bundle"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"0" * 10**7)
    with pytest.raises(CacheFileError, match="declares more than it holds"):
        unpack_cache(file, other)
    name = f"{KEY.name}/{hashlib.sha256(b'0').hexdigest()}.bundle"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"0")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr(name, b"0")
    with pytest.raises(CacheFileError, match="no file of pack_cache"):
        unpack_cache(file, other)


def test_a_file_that_cannot_be_read_or_written_is_named(cache, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for directory in (tmp_path / "a" / "b", kept):
        with pytest.raises(CacheFileError, match=r"none\.zip cannot be read: No such file"):
            unpack_cache(tmp_path / "none.zip", directory)
    with pytest.raises(CacheFileError, match="kept cannot be read"):
        unpack_cache(kept, tmp_path / "a" / "b")
    # What was there stays, what was made for it goes.
    assert kept.is_dir()
    assert not (tmp_path / "a").exists()
    (tmp_path / "text").touch()
    for folder in ("none", "text"):
        with pytest.raises(CacheFileError, match=rf"{folder}/cache\.zip cannot be written"):
            pack_cache(cache, tmp_path / folder / "cache.zip")
