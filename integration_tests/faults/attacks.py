"""Files that try to run code, to lead outside, or to take memory, by what they try.

A reader that runs code makes the directory ``canary`` where it runs; one that trusts a declared
size takes ``CLAIM`` bytes. ``../outside/secret`` is what no name in a file may lead to.
"""

import codecs
import json
import math
import os
import pickle
import struct
import zipfile
from collections import Counter, OrderedDict

import torch
from torch.distributed.checkpoint import filesystem, metadata

CLAIM = 1 << 28
# As pack_cache names a directory.
FOLDER = "torch-2.13.0+cpu-" + "0a" * 12
ESCAPE = "\x1b[2J\n"


class Call:
    """Pickled as a call of ``function``, and as the state of its result."""

    def __init__(self, function, *arguments, state=None):
        self.reduced = (function, arguments, state)

    def __reduce__(self):
        return self.reduced


HARM = Call(os.mkdir, "canary")
BYTEARRAY = b"\x80\x05\x96" + struct.pack("<Q", CLAIM) + b"."  # an opcode that claims memory


def rewrite(path, changes, compression=zipfile.ZIP_STORED, directory=""):
    """Change records of an archive, with their checksums; give the name of one a slash."""
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for name, content in records.items():
            inner = name.partition("/")[2]
            record = zipfile.ZipInfo(f"{name}/" if inner == directory else name)
            record.compress_type = compression
            archive.writestr(record, changes.get(inner, bytes)(content))
            archive.infolist()[-1].external_attr = 0


def _save(content, path, *changes, **options):
    torch.save(content, path)
    rewrite(path, *changes, **options)


def _save_old(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _old_form_that_claims_memory(path):
    _save_old({"a": torch.ones(70_000)}, path)
    numbers = (struct.pack("<i", number) for number in (70_000, CLAIM // 4))
    path.write_bytes(path.read_bytes().replace(*numbers))


def _text_that_each_call_doubles(path):
    text = Call(codecs.encode, "a" * 1024, "latin1")
    for _ in range(18):
        text = Call(codecs.encode, text, "hex")
    torch.save({"extra": text}, path)


def _copies_of_a_long_dict(path):
    pairs = [(number, None) for number in range(1 << 14)]
    torch.save({"extra": [Call(OrderedDict, pairs) for _ in range(64)]}, path)


def _lists_that_double(path):
    value = []
    for _ in range(60):
        value = [value] * 2
    torch.save({"extra": value}, path)


def _storage_in_a_directory(path):
    key, named = (b"X%b%b" % (struct.pack("<I", len(one)), one) for one in (b"0", b"0/"))
    changes = {"data.pkl": lambda content: content.replace(key, named)}
    _save({"state_dict": {"a": torch.ones(1 << 16)}}, path, changes, directory="data/0")


# Each writes a file that is read as a checkpoint.
CHECKPOINTS = {
    "pickle_that_runs_code": lambda path: path.write_bytes(pickle.dumps({"extra": HARM})),
    "archive_that_runs_code": lambda path: torch.save({"extra": HARM}, path),
    "old_form_that_runs_code": lambda path: _save_old({"extra": HARM}, path),
    "old_form_that_claims_memory": _old_form_that_claims_memory,
    "array_that_claims_memory": lambda path: torch.save({"extra": Call(bytearray, CLAIM)}, path),
    "opcode_that_claims_memory": lambda path: _save({}, path, {"data.pkl": lambda _: BYTEARRAY}),
    "text_that_each_call_doubles": _text_that_each_call_doubles,
    "copies_of_a_long_dict": _copies_of_a_long_dict,
    "lists_that_double": _lists_that_double,
    "archive_that_is_compressed": lambda path: _save(
        {}, path, {"data.pkl": lambda _: bytes(CLAIM // 2)}, zipfile.ZIP_DEFLATED
    ),
    "storage_larger_than_its_record": lambda path: _save(
        {"state_dict": {"a": torch.ones(1 << 20)}}, path, {"data/0": lambda _: bytes(4)}
    ),
    "storage_in_a_directory": _storage_in_a_directory,
    "dict_that_hides_a_method": lambda path: torch.save(
        {"meta": Call(Counter, state={"get": "text", "items": "text"})}, path
    ),
}


def _momentum(checkpoint):
    return checkpoint["optimizer"]["state"][0]["momentum_buffer"]


def _momentum_outside_of_its_memory(checkpoint):
    shape = _momentum(checkpoint).shape
    outside = torch.full((len(shape), 1), 1 << 40)
    sparse = torch.sparse_coo_tensor(outside, torch.ones(1), shape, check_invariants=False)
    checkpoint["optimizer"]["state"][0]["momentum_buffer"] = sparse


# Each changes the content of a checkpoint that a run resumes from.
RESUMED = {
    "random_state_that_repeats_one_number": lambda checkpoint: checkpoint["rng"][0].update(
        python=(3, torch.zeros(1, dtype=torch.int64).expand(CLAIM // 8), None)
    ),
    "momentum_outside_of_its_memory": _momentum_outside_of_its_memory,
    "tensor_that_hides_a_method": lambda checkpoint: setattr(
        _momentum(checkpoint), "detach", "text"
    ),
    "name_with_escape_codes": lambda checkpoint: checkpoint.update(message_hub=[{ESCAPE: 5}]),
    "kept_file_outside": lambda checkpoint: checkpoint["checkpoint_hook"].update(
        kept=["../outside/secret"]
    ),
}


def _marker_that_leads_to_code(path):
    CHECKPOINTS["archive_that_runs_code"](path.with_name("code"))
    path.write_text("../run/code")


# Each writes a file that is read as last_checkpoint.
MARKERS = {
    "marker_that_leads_to_code": _marker_that_leads_to_code,
    "marker_that_leads_to_a_device": lambda path: path.write_text("/dev/zero"),
    "marker_that_leads_to_itself": lambda path: path.write_text(path.name),
    "marker_that_is_a_pipe": os.mkfifo,
    "marker_with_too_long_a_name": lambda path: path.write_text("a" * 300),
    "marker_with_escape_codes": lambda path: path.write_text(f"{ESCAPE}epoch_9.pth"),
}


def shard_of(path):
    """Return the file of the only tensor of a sharded checkpoint."""
    return next(path.parent.glob(f"{path.name}.shards-*/*.distcp"))


def metadata_of(path):
    """Return the file of a sharded checkpoint that torch unpickles."""
    return shard_of(path).with_name(".metadata")


def _replace_metadata(path, put):
    metadata_of(path).unlink()
    put(metadata_of(path))


def _edit(path, size=(), name=None, lengths=()):
    """Change the metadata: the tensor's shape and file, and the files that are counted too."""
    data = pickle.loads(metadata_of(path).read_bytes())  # noqa: S301 - of this test
    (stored,) = data.storage_data.values()
    stored.offset, stored.length = 0, shard_of(path).stat().st_size
    stored.relative_path = name or stored.relative_path
    more = (filesystem._StorageInfo(file, 0, length) for file, length in lengths)
    data.storage_data.update(enumerate(more))
    tensor = data.state_dict_metadata["state_dict.w"]
    tensor.size = tensor.chunks[0].sizes = torch.Size(size or tensor.size)
    metadata_of(path).write_bytes(pickle.dumps(data))


def _value_that_runs_code(path):
    torch.save(HARM, shard_of(path))
    stored = filesystem._StorageInfo(shard_of(path).name, 0, shard_of(path).stat().st_size)
    value = {"state_dict.w": metadata.BytesStorageMetadata()}
    data = metadata.Metadata(value, storage_data={metadata.MetadataIndex("state_dict.w"): stored})
    metadata_of(path).write_bytes(pickle.dumps(data))


def _number_that_is_repeated(path, lengths):
    shard_of(path).with_name("filler").write_bytes(bytes(1 << 20))
    torch.save(torch.zeros(1, dtype=torch.float64).expand(CLAIM // 8), shard_of(path))
    _edit(path, size=[CLAIM // 8], lengths=lengths)


def _shard_that_is_compressed(path):
    _save(torch.zeros(CLAIM // 16).double(), shard_of(path), {}, zipfile.ZIP_DEFLATED)
    _edit(path)


# Each changes a checkpoint whose tensor ``state_dict.w`` lies in a folder beside it.
SHARDS = {
    "metadata_that_runs_code": lambda path: metadata_of(path).write_bytes(pickle.dumps(HARM)),
    "metadata_that_claims_memory": lambda path: metadata_of(path).write_bytes(BYTEARRAY),
    "metadata_that_is_a_pipe": lambda path: _replace_metadata(path, os.mkfifo),
    "metadata_without_an_end": lambda path: _replace_metadata(
        path, lambda file: file.symlink_to("/dev/zero")
    ),
    "value_that_runs_code": _value_that_runs_code,
    "shape_that_no_file_fills": lambda path: _edit(path, size=[1 << 40]),
    "length_that_is_no_number": lambda path: _number_that_is_repeated(path, [("filler", math.nan)]),
    "file_that_is_counted_often": lambda path: _number_that_is_repeated(
        path, [("filler", 1 << 20)] * (CLAIM >> 20)
    ),
    "shard_that_is_compressed": _shard_that_is_compressed,
    "shard_outside": lambda path: _edit(path, name="../../outside/secret"),
    "folder_outside": lambda path: torch.save(
        {**torch.load(path, weights_only=True), "shards": "../outside"}, path
    ),
}


def _index(folder, *names, form="pytorch_model.bin"):
    text = json.dumps({"weight_map": {name: name for name in names}})
    (folder / f"{form}.index.json").write_text(text)


def _index_with_a_file(folder, put, name="a.bin", form="pytorch_model.bin"):
    put(folder / name)
    _index(folder, name, form=form)


def _safetensors(folder, header, length=None):
    content = struct.pack("<Q", length or len(header)) + header.encode()
    (folder / "model.safetensors").write_bytes(content)


# Each writes into a directory that is read as weights of Hugging Face.
PRETRAINED = {
    "index_that_leads_outside": lambda folder: _index(folder, "../outside/secret"),
    "index_with_an_absolute_name": lambda folder: _index(
        folder, str(folder.absolute().parent / "outside" / "secret")
    ),
    "index_with_many_names": lambda folder: _index(folder, *(f"../{i}" for i in range(10_000))),
    "index_that_is_nested_without_an_end": lambda folder: (
        folder / "pytorch_model.bin.index.json"
    ).write_text("[" * 100_000),
    "index_with_a_link_to_a_device": lambda folder: _index_with_a_file(
        folder, lambda file: file.symlink_to("/dev/zero")
    ),
    "index_with_a_pipe": lambda folder: _index_with_a_file(
        folder, os.mkfifo, "a.safetensors", "model.safetensors"
    ),
    "weights_that_run_code": lambda folder: torch.save(
        {"extra": HARM}, folder / "pytorch_model.bin"
    ),
    "header_that_claims_a_terabyte": lambda folder: _safetensors(folder, "{}", 1 << 40),
    "tensor_that_claims_a_terabyte": lambda folder: _safetensors(
        folder, f'{{"a": {{"dtype": "U8", "shape": [{1 << 40}], "data_offsets": [0, {1 << 40}]}}}}'
    ),
}


def pack(path, *members, content=b"code", compression=zipfile.ZIP_DEFLATED):
    """Write a pack with one good file, and others."""
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as archive:
        for member in (f"{FOLDER}/a.so", *members):
            archive.writestr(member, content)


def _member_below_a_link(path):
    link = zipfile.ZipInfo(f"{FOLDER}/link")
    link.external_attr = 0o120777 << 16  # how zip stores a symbolic link
    pack(path, link, f"{FOLDER}/link/secret", content="../../outside")


def _folder_that_is_a_link(path):
    pack(path)
    (path.parent / "cache").mkdir()
    (path.parent / "cache" / FOLDER).symlink_to("../outside")


def _member_whose_name_is_no_text(path):
    pack(path, f"{FOLDER}/é")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xfe"))


def _dictionary_that_claims_memory(path):
    pack(path, compression=zipfile.ZIP_LZMA)
    before = b"\x09\x04\x05\x00]"  # the size of the dictionary follows
    sizes = (before + struct.pack("<I", size) for size in (1 << 23, (1 << 32) - 1))
    path.write_bytes(path.read_bytes().replace(*sizes))


# Each writes a pack of a compile cache.
PACKS = {
    "member_above": lambda path: pack(path, "../outside/secret"),
    "member_above_its_folder": lambda path: pack(path, f"{FOLDER}/../../outside/secret"),
    "member_with_an_absolute_name": lambda path: pack(
        path, str(path.absolute().parent / "outside" / "secret")
    ),
    "member_below_a_link": _member_below_a_link,
    "folder_that_is_a_link": _folder_that_is_a_link,
    "member_whose_name_is_no_text": _member_whose_name_is_no_text,
    "member_that_is_compressed": lambda path: pack(path, content=bytes(CLAIM // 2)),
    "dictionary_that_claims_memory": _dictionary_that_claims_memory,
}


def mutated(content, generator):
    """Return ``content`` with up to three other bytes, or cut off."""
    changed = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        changed[generator.randrange(len(changed))] = generator.randrange(256)
    is_cut = generator.random() < 0.2
    return bytes(changed[: generator.randrange(len(changed))] if is_cut else changed)


# What still succeeds, and the damage.
OPEN = {
    "shard_that_is_compressed": "takes up to a thousand times the file's size in memory",
}
