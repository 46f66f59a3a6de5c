"""Files made to run code, or to write files, when they are read."""

from typing import Final

import pytest
import torch

from mm_runner import CheckpointError
from mm_runner.checkpoint import (
    load_checkpoint_file,
    save_checkpoint_file,
)
from mm_runner.tools import convert_mmengine_checkpoint

CONTENT = {"state_dict": {"a": torch.ones(2)}, "meta": {"epoch": 1}}


class Program(torch.nn.Module):
    path: Final[str]

    def __init__(self, path):
        super().__init__()
        self.path = path

    def forward(self):
        return self.training

    @torch.jit.export
    def __getstate__(self):
        return torch.zeros(1), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[torch.Tensor, bool]):
        torch.save(state[0], self.path)
        self.training = state[1]


def two_directories(tmp_path, victim):
    """Make a file in which Python's reader finds a checkpoint, and torch's a program."""
    torch.jit.script(Program(str(victim))).save(str(tmp_path / "program"))
    torch.save(CONTENT, tmp_path / "checkpoint")
    program = (tmp_path / "program").read_bytes()
    both = bytearray(program + (tmp_path / "checkpoint").read_bytes())
    # Where torch's reader looks for the directory; Python's takes what stands before this.
    place = both.rindex(b"PK\x06\x07") + 8
    both[place : place + 8] = program.rindex(b"PK\x06\x06").to_bytes(8, "little")
    return bytes(both)


@pytest.mark.filterwarnings("ignore")  # an error would end torch's loader before it runs anything
def test_a_program_behind_a_second_directory_is_not_run(tmp_path):
    victim = tmp_path / "victim"
    path = tmp_path / "bad.pth"
    path.write_bytes(two_directories(tmp_path, victim))
    victim.write_bytes(b"precious")
    for read in (load_checkpoint_file, lambda path: convert_mmengine_checkpoint(path, path)):
        with pytest.raises(CheckpointError, match=r"bad\.pth"):
            read(path)
        assert victim.read_bytes() == b"precious"


# Functions that a checkpoint names, with state set on them; and the id of a module's source.
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
PATCHES = {
    "function": REBUILD + b"N(dS'__name__'\nS'changed'\nsS'dump_patches'\nI1\ns\x86b",
    "class": b"ccollections\nOrderedDict\nN(dS'changed'\nI1\ns\x86b",
    "module": b"(S'module'\n" + REBUILD + b"S'source'\nS'other'\ntQ",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PATCHES)
def test_no_state_is_set_on_functions_and_no_patch_is_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.pth"
    torch.save(CONTENT, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    head = content.index(b".", content.index(b"little_endian")) + 1
    # A dict with one entry. A value is pushed and popped: torch's safe loader knows no POP.
    path.write_bytes(content[:head] + b"\x80\x02(dN0S'a'\n" + PATCHES[name] + b"s.")
    for read in (load_checkpoint_file, lambda path: convert_mmengine_checkpoint(path, path)):
        with pytest.raises(CheckpointError, match=r"bad\.pth"):
            read(path)
    assert torch._utils._rebuild_tensor_v2.__name__ == "_rebuild_tensor_v2"
    assert not hasattr(torch._utils._rebuild_tensor_v2, "dump_patches")
    assert [one.name for one in tmp_path.iterdir()] == ["bad.pth"]


KEEPS_ONE = {"checkpoint": {"type": "CheckpointHook", "max_keep_ckpts": 1, "save_best": "accuracy"}}


def best(file):
    return {"accuracy": {"score": 0.5, "epoch": 1, "iter": 6, "file": file}}


@pytest.mark.parametrize(
    ("entry", "is_refused"),
    [
        ({"kept": ["../victim.pth"]}, True),
        ({"kept": ["{outside}/victim.pth"]}, True),
        ({"kept": [".."]}, True),
        ({"kept": ["victim.pth\0"]}, True),
        ({"kept": ["notes.txt", "*", "epoch_*.pth"]}, False),
        ({"best": best("../victim.pth")}, True),
        ({"best": best("notes.txt")}, False),
    ],
    ids=["above", "absolute", "parent", "zero", "other-files", "best-above", "best-other"],
)
def test_a_resumed_run_deletes_no_file_that_is_not_its_own(
    make_runner, tmp_path, entry, is_refused
):
    make_runner(train_cfg={"max_epochs": 1}, default_hooks=KEEPS_ONE).train()
    path = tmp_path / "run" / "epoch_1.pth"
    victims = [tmp_path / "victim.pth", tmp_path / "run" / "notes.txt"]
    victims += [
        tmp_path / f"{name}.shards-1" / "__0_0.distcp" for name in ("victim.pth", "run/x.pth")
    ]
    for victim in victims:
        victim.parent.mkdir(exist_ok=True)
        victim.write_bytes(b"precious")
    checkpoint = load_checkpoint_file(path)
    if "kept" in entry:
        entry = {"kept": [name.replace("{outside}", str(tmp_path)) for name in entry["kept"]]}
    checkpoint["checkpoint_hook"].update(entry)
    save_checkpoint_file(checkpoint, path)
    options = {"resume": True, "load_from": str(path), "default_hooks": KEEPS_ONE}
    if is_refused:
        with pytest.raises(CheckpointError, match="name of a file without a directory"):
            make_runner(**options)
    else:
        make_runner(**options).train()
        assert (tmp_path / "run" / "epoch_2.pth").is_file()
    assert [one for one in victims if not one.exists()] == []
