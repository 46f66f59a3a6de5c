import os
import zipfile

import pytest

from mm_compile import CacheFileError, ConfigError, pack_cache, unpack_cache

FOLDER = "torch-2.13.0+cpu-" + "0a" * 12
FILES = {"ab/cab.so": b"\x7fELF...", "fxgraph/x/y": b"graph"}


@pytest.fixture
def cache(tmp_path):
    """Return a directory with two files of compiled code."""
    directory = tmp_path / "cache"
    for name, content in FILES.items():
        path = directory / FOLDER / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    directory.chmod(0o700)
    (directory / FOLDER).chmod(0o700)
    return directory


def files_in(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_a_cache_moves_in_one_file(cache, tmp_path):
    (cache / FOLDER / "locks").mkdir()
    (cache / FOLDER / "locks" / "x.lock").touch()
    (cache / "notes").mkdir()
    file = tmp_path / "cache.zip"
    assert pack_cache(cache, file) == 2
    other = tmp_path / "other" / "place"
    before = os.umask(0)
    try:
        assert unpack_cache(file, str(other)) == 2
    finally:
        os.umask(before)
    assert unpack_cache(file, other) == 0  # it is there
    assert files_in(other) == {f"{FOLDER}/{name}": content for name, content in FILES.items()}
    assert other.stat().st_mode & 0o777 == 0o700
    assert (other / FOLDER).stat().st_mode & 0o777 == 0o700


def test_nothing_to_pack_keeps_the_older_file(cache, tmp_path):
    file = tmp_path / "cache.zip"
    pack_cache(cache, file)
    content = file.read_bytes()
    with pytest.raises(CacheFileError, match="holds no compiled code to pack"):
        pack_cache(tmp_path / "none", file)
    assert file.read_bytes() == content
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize(
    "name",
    [
        "../evil.so",
        "/tmp/evil.so",
        f"{FOLDER}/../../evil.so",
        f"{FOLDER}/.hidden",
        "C:\\evil.so",
        "evil.so",
        f"{FOLDER}/x/",
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


def test_unpacking_writes_a_link_as_the_text_that_it_is(cache, tmp_path):
    file, other = tmp_path / "cache.zip", tmp_path / "other"
    pack_cache(cache, file)
    with zipfile.ZipFile(file, "a") as archive:
        link = zipfile.ZipInfo(f"{FOLDER}/link")
        link.external_attr = 0o120777 << 16  # how zip stores a symbolic link
        archive.writestr(link, "/etc/passwd")
    assert unpack_cache(file, other) == 3
    assert not (other / FOLDER / "link").is_symlink()


def test_unpacking_refuses_damage_and_bombs(cache, tmp_path):
    file, other = tmp_path / "cache.zip", tmp_path / "other"
    pack_cache(cache, file)
    content = file.read_bytes()
    for broken in (content[:100], content[:75] + b"????" + content[79:], b"", b"text"):
        file.write_bytes(broken)
        with pytest.raises(CacheFileError, match="no file of pack_cache, or damaged"):
            unpack_cache(file, other)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{FOLDER}/zeros", b"0" * 10**7)
    with pytest.raises(CacheFileError, match="declares more than it holds"):
        unpack_cache(file, other)
    assert not other.exists()
    with pytest.raises(ConfigError, match=r"the directory for unpack_cache is .* is a file"):
        unpack_cache(file, file)


def test_a_file_that_cannot_be_read_or_written_is_named(cache, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for directory in (tmp_path / "a" / "b", kept):
        with pytest.raises(CacheFileError, match=r"none\.zip cannot be unpacked .*: No such file"):
            unpack_cache(tmp_path / "none.zip", directory)
    with pytest.raises(CacheFileError, match="kept cannot be unpacked"):
        unpack_cache(kept, tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    with pytest.raises(CacheFileError, match=r"none/cache\.zip cannot be written"):
        pack_cache(cache, tmp_path / "none" / "cache.zip")
