import os
import pickle
import random
import warnings
from argparse import Namespace
from collections import OrderedDict
from contextlib import suppress

import pytest
import torch

from mm_runner import CheckpointError
from mm_runner.checkpoint import (
    LAST_CHECKPOINT,
    find_latest_checkpoint,
    latest_readable,
    load_checkpoint_file,
    mark_latest,
    remove_leftovers,
    rng_state,
    save_checkpoint_file,
    set_rng_state,
)
from mm_runner.checkpoint._writing import write_atomically
from mm_runner.errors import CheckpointWriteError

CONTENT = {
    "meta": {"epoch": 3, "note": "two\nlines", "none": None},
    "state_dict": OrderedDict(weight=torch.arange(6.0).reshape(2, 3)),
    "states": [(1, 2.5), True],
}


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_is_saved_is_what_is_loaded(tmp_path):
    save_checkpoint_file(CONTENT, tmp_path / "new" / "a.pth")
    loaded = load_checkpoint_file(tmp_path / "new" / "a.pth")
    assert torch.equal(loaded["state_dict"]["weight"], CONTENT["state_dict"]["weight"])
    assert loaded["meta"] == CONTENT["meta"]
    assert loaded["states"] == CONTENT["states"]
    assert names_in(tmp_path / "new") == ["a.pth"]


def _write_half(error):
    def save(_, file):
        file.write(b"half of a check")
        raise error

    return save


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (OSError(28, "No space left on device"), CheckpointWriteError),
        (RuntimeError("unexpected pos 64 vs 0"), CheckpointWriteError),
        (KeyboardInterrupt(), KeyboardInterrupt),
        (TypeError("cannot pickle"), TypeError),
    ],
    ids=["full-disk", "full-disk-in-torch", "ctrl-c", "unforeseen"],
)
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, error, raised):
    path = tmp_path / "a.pth"
    save_checkpoint_file(CONTENT, path)
    before = path.read_bytes()
    monkeypatch.setattr(torch, "save", _write_half(error))
    with pytest.raises(raised):
        save_checkpoint_file({"meta": {}}, path)
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.pth"]


def test_a_failing_write_says_which_file_and_what_to_do(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(
        CheckpointWriteError, match=r"Writing .*a\.pth failed: .*Free space or make the directory"
    ):
        save_checkpoint_file(CONTENT, tmp_path / "file" / "a.pth")


def test_last_checkpoint_is_relative_so_that_the_directory_can_be_moved(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    save_checkpoint_file(CONTENT, before / "epoch_3.pth")
    mark_latest(before / "epoch_3.pth", before)
    assert (before / LAST_CHECKPOINT).read_text() == "epoch_3.pth\n"
    before.rename(after)
    path, content = latest_readable(after, print)
    assert path == after / "epoch_3.pth"
    assert content["meta"]["epoch"] == 3
    mark_latest(tmp_path / "elsewhere" / "x.pth", after)
    assert (after / LAST_CHECKPOINT).read_text() == f"..{os.sep}elsewhere{os.sep}x.pth\n"


def test_the_newest_is_the_one_named_then_the_highest_number(tmp_path):
    for name in ("epoch_2.pth", "epoch_10.pth", "epoch_9.pth", "best_accuracy.pth", "epoch_x.pth"):
        (tmp_path / name).touch()
    numbered = [tmp_path / f"epoch_{number}.pth" for number in (10, 9, 2)]
    assert find_latest_checkpoint(tmp_path) == numbered
    mark_latest(tmp_path / "epoch_9.pth", tmp_path)
    assert find_latest_checkpoint(tmp_path) == [numbered[1], numbered[0], numbered[2]]
    # MMEngine's form
    (tmp_path / LAST_CHECKPOINT).write_text(str(tmp_path / "epoch_2.pth"))
    assert find_latest_checkpoint(tmp_path)[0] == numbered[2]


@pytest.mark.parametrize("directory", ["run", "elsewhere"])
def test_what_lies_beside_a_damaged_newest_file_is_taken_under_any_name(tmp_path, directory):
    for number in (9, 10, 11):
        save_checkpoint_file(CONTENT, tmp_path / directory / f"model_{number}.ckpt")
    save_checkpoint_file(CONTENT, tmp_path / directory / "model_final_12.ckpt")
    newest = tmp_path / directory / "model_11.ckpt"
    newest.write_bytes(b"garbage")
    mark_latest(newest, tmp_path / "run")
    path, _ = latest_readable(tmp_path / "run", [].append)
    assert path.samefile(tmp_path / directory / "model_10.ckpt")
    assert len(find_latest_checkpoint(tmp_path / "run")) == 3


def test_nothing_to_resume_is_none_and_nothing_readable_an_error(tmp_path):
    assert latest_readable(tmp_path, print) == (None, None)
    for name in ("epoch_1.pth", "epoch_2.pth"):
        (tmp_path / name).write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints.* move them away"):
        latest_readable(tmp_path, [].append)


def test_a_changed_number_in_a_tensor_is_found(tmp_path):
    path = tmp_path / "a.pth"
    save_checkpoint_file({"state_dict": {"a": torch.full((1000,), 7.0)}}, path)
    whole = bytearray(path.read_bytes())
    place = whole.index(torch.full((100,), 7.0).numpy().tobytes()) + 200
    whole[place] ^= 1
    path.write_bytes(whole)
    # torch's own loader does not look at the checksums that it writes.
    read = torch.load(path, weights_only=True)["state_dict"]["a"]
    assert not torch.equal(read, torch.full((1000,), 7.0))
    with pytest.raises(CheckpointError, match=r"a\.pth is damaged: Bad CRC-32"):
        load_checkpoint_file(path)


@pytest.mark.skipif(
    not hasattr(torch.serialization, "set_crc32_options"), reason="always writes checksums"
)
def test_a_file_without_checksums_is_read(tmp_path):
    torch.serialization.set_crc32_options(False)
    try:
        save_checkpoint_file(CONTENT, tmp_path / "a.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    assert load_checkpoint_file(tmp_path / "a.pth")["states"] == CONTENT["states"]


def test_a_program_is_refused(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop this
        program = torch.jit.trace(torch.nn.Linear(1, 1), torch.ones(1))
        torch.jit.save(program, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"a\.pth is a TorchScript program"):
        load_checkpoint_file(tmp_path / "a.pth")


def test_what_killed_processes_left_is_removed_and_what_is_being_written_stays(tmp_path):
    (tmp_path / ".epoch_1.pth.123.unfinished").write_bytes(b"half")
    (tmp_path / "epoch_1.pth").write_bytes(b"other")
    seen = []

    def write(file):
        file.write(b"whole")
        seen.extend(path.name for path in remove_leftovers(tmp_path))

    write_atomically(tmp_path / "epoch_2.pth", write)
    assert seen == [".epoch_1.pth.123.unfinished"]
    assert names_in(tmp_path) == ["epoch_1.pth", "epoch_2.pth"]
    assert remove_leftovers(tmp_path / "absent") == []


def test_epochs_and_steps_side_by_side_are_ordered_by_time(tmp_path):
    for index, name in enumerate(("iter_900.pth", "epoch_2.pth", "iter_50.pth")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (index, index))
    found = [path.name for path in find_latest_checkpoint(tmp_path)]
    assert found == ["iter_50.pth", "epoch_2.pth", "iter_900.pth"]


def test_no_changed_byte_is_loaded_or_makes_loading_fail_in_another_way(tmp_path):
    path = tmp_path / "a.pth"
    save_checkpoint_file(CONTENT, path)
    whole = path.read_bytes()
    generator = random.Random(0)  # noqa: S311 - no secret
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(3):
            changed[generator.randrange(len(whole))] = generator.randrange(256)
        path.write_bytes(changed)
        with suppress(CheckpointError):
            # The change was in what fills up the file.
            loaded = load_checkpoint_file(path)
            assert torch.equal(loaded["state_dict"]["weight"], CONTENT["state_dict"]["weight"])
            assert loaded["meta"] == CONTENT["meta"]


@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "old-style"])
def test_a_refusal_names_the_class_and_gives_no_advice_to_load_it_unsafely(tmp_path, is_archive):
    path = tmp_path / "a.pth"
    torch.save({"a": Namespace(b=1)}, path, _use_new_zipfile_serialization=is_archive)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint_file(path)
    said = str(caught.value)
    assert "it names argparse.Namespace. It is refused, and nothing in it was executed" in said
    assert f"'mm-runner convert {path} <new file>'" in said
    assert "weights_only" not in said
    assert "\x1b" not in said


def test_a_file_without_a_dict_and_an_absent_file_are_named(tmp_path):
    torch.save([1], tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"a\.pth holds a list, not a dict"):
        load_checkpoint_file(tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=r"b\.pth was asked for; there is no such file"):
        load_checkpoint_file(str(tmp_path / "b.pth"))


def test_random_numbers_go_on_from_a_saved_state(tmp_path):
    numpy = pytest.importorskip("numpy")

    def draw():
        own = [random.random(), random.gauss(0, 1)]  # noqa: S311 - no secret
        return [*own, numpy.random.rand(), numpy.random.randn(), *torch.rand(3).tolist()]

    save_checkpoint_file({"rng": rng_state(torch.device("cpu"))}, tmp_path / "a.pth")
    drawn = draw()
    state = load_checkpoint_file(tmp_path / "a.pth")["rng"]
    set_rng_state(state, torch.device("cpu"))
    assert draw() == drawn


class Command:
    def __reduce__(self):
        return os.system, ("echo executed",)


def message_of(path):
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint_file(path)
    return str(caught.value)


@pytest.mark.parametrize("size", [3, 50, 1200, -1])
def test_a_file_that_is_cut_off_says_so_with_its_size_and_the_loaders_reason(tmp_path, size):
    path = tmp_path / "epoch_1.pth"
    content = {"state_dict": {"a": torch.arange(600.0)}, "meta": {"epoch": 1}}
    save_checkpoint_file(content, path)
    path.write_bytes(path.read_bytes()[:size])
    message = message_of(path)
    assert f"is cut off, or no checkpoint: {path.stat().st_size:,} bytes that begin wi" in message


@pytest.mark.parametrize("protocol", [2, 4])
def test_another_programs_pickle_is_refused_without_torchs_own_warning(tmp_path, protocol, capfd):
    path = tmp_path / "epoch_1.pth"
    path.write_bytes(pickle.dumps(Command(), protocol))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        message = message_of(path)
    assert [one for one in caught if "pickle protocol" in str(one.message)] == []
    assert capfd.readouterr().out == ""
    assert "weights_only" not in message


@pytest.mark.parametrize("marker", [b"\n", bytes(12)], ids=["blank", "zeros"])
def test_with_an_empty_marker_the_newest_file_is_taken(tmp_path, marker):
    save_checkpoint_file(CONTENT, tmp_path / "epoch_3.pth")
    (tmp_path / LAST_CHECKPOINT).write_bytes(marker)
    warned: list[str] = []
    path, _ = latest_readable(tmp_path, warned.append)
    assert path.name == "epoch_3.pth"
    assert [one.partition("; ")[0] for one in warned] == [
        f"{tmp_path / LAST_CHECKPOINT} names no file"
    ]
    path.unlink()
    with pytest.raises(CheckpointError, match=r"none of the 0 checkpoints.* last_checkpoint incl"):
        latest_readable(tmp_path, print)


def test_a_float_in_torchs_old_form_is_read(tmp_path):
    path = tmp_path / "epoch_1.pth"
    content = {"meta": {"lr": 0.1}, "state_dict": {"a": torch.arange(3.0)}}
    torch.save(content, path, _use_new_zipfile_serialization=False)
    loaded = load_checkpoint_file(path)
    assert loaded["meta"] == content["meta"]
    assert torch.equal(loaded["state_dict"]["a"], content["state_dict"]["a"])
    torch.save({**content, "b": Command()}, path, _use_new_zipfile_serialization=False)
    assert "It is refused" in message_of(path)
