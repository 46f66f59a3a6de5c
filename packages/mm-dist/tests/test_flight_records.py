"""What torch's flight recorders hold, kept as torch writes it."""

import pickle

import pytest
import torch
import torch.distributed as dist

from mm_dist import read_flight_records

_records_gloo = hasattr(getattr(torch._C, "_distributed_c10d", None), "_dump_fr_trace")


@pytest.mark.skipif(not _records_gloo, reason="this torch records no collectives of gloo")
@pytest.mark.usefixtures("group_of_one")
def test_what_gloo_did_is_in_its_record():
    dist.all_reduce(torch.ones(3))
    entries = pickle.loads(read_flight_records()["gloo"])["entries"]  # noqa: S301 (torch wrote it)
    assert entries[-1]["profiling_name"] == "gloo:all_reduce"
    assert entries[-1]["input_sizes"] == [[3]]


def test_a_dump_of_another_form_is_no_record(monkeypatch):
    # Stands in for NCCL's recorder, and for one that refuses.
    def refuses(**_):
        raise RuntimeError("no recorder")

    entry = {"profiling_name": "nccl:all_reduce"}
    for dumps, expected in (
        ([refuses], []),
        ([lambda **_: b"no pickle"], []),
        ([lambda **_: pickle.dumps({"entries": []})], []),
        ([lambda **_: pickle.dumps({"entries": [entry]}), refuses], ["nccl"]),
    ):
        monkeypatch.setattr(
            "mm_dist.diagnose._flight_recorder.flight_recorders",
            lambda dumps=dumps: iter(dumps),
        )
        assert list(read_flight_records()) == expected


def test_a_single_process_has_no_record(run_script):
    done = run_script("import mm_dist\nprint(mm_dist.read_flight_records())")
    assert done.stdout.strip() == "{}", done.stderr
