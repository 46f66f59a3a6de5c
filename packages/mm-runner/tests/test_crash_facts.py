"""What a crash bundle says besides the traceback: log, samples, generators, memory, collectives."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from crashing import Raise
from toy import NO_VALIDATION, Blobs, Classifier, loader_cfg, runner_arguments
from typing_extensions import override

import mm_dist
from mm_runner import Runner
from mm_runner.crash._rng import rng_digests
from mm_runner.hooks import Hook


class Indexed(Blobs):
    """Samples that say which they are."""

    def __getitem__(self, index):
        return {**super().__getitem__(index), "labels": torch.tensor(index % 3), "index": index}


class Keeps(Classifier):
    """Takes the index as well, and keeps that of the last batch."""

    def forward(self, inputs, labels, index, mode="tensor"):
        self.seen = index.tolist()
        return super().forward(inputs, labels, mode)


def facts_of_crash(make_runner, error=ArithmeticError, **overrides):
    """Fail in the eighth step; return the runner, what it left, and the folder."""
    options = {
        "custom_hooks": [Raise(7)],
        "train_cfg": {"by_epoch": True, "max_epochs": 4},
        **NO_VALIDATION,
        **overrides,
    }
    runner = make_runner(**options)
    with pytest.raises(error):
        runner.train()
    folder = runner.log_dir / "crash"
    return runner, json.loads((folder / "rank0.json").read_text()), folder


@pytest.mark.parametrize(
    "loader",
    [
        {"sampler": {"type": "DefaultSampler", "shuffle": True}},
        {"sampler": {"type": "DefaultSampler", "shuffle": False}},
        {"sampler": {"type": "InfiniteSampler"}},
        {"num_workers": 1},
    ],
    ids=["shuffled", "in-order", "endless", "workers"],
)
def test_the_samples_of_the_last_batch_are_named(make_runner, loader):
    overrides = {}
    if loader.get("sampler", {}).get("type") == "InfiniteSampler":
        overrides["train_cfg"] = {"by_epoch": False, "max_iters": 20}
    runner, facts, _ = facts_of_crash(
        make_runner,
        model={"type": Keeps},
        train_dataloader={**loader_cfg(), "dataset": Indexed(), **loader},
        **overrides,
    )
    assert facts["samples"] == runner.model.seen
    assert len(facts["samples"]) == 4


def test_samples_are_named_after_a_resumption_within_an_epoch(make_runner, tmp_path):
    data = {**loader_cfg(), "dataset": Indexed()}
    saving = {"checkpoint": {"interval": 3, "by_epoch": False}}
    common = {
        "model": {"type": Keeps},
        "train_dataloader": data,
        "default_hooks": saving,
        "work_dir": tmp_path / "resumed",
    }
    facts_of_crash(make_runner, custom_hooks=[Raise(4)], **common)
    runner, facts, _ = facts_of_crash(make_runner, custom_hooks=[Raise(4)], resume=True, **common)
    assert facts["iter"] == 4
    assert facts["samples"] == runner.model.seen


def test_samples_of_another_sampler_are_not_guessed(make_runner):
    generator = torch.Generator().manual_seed(0)
    sampler = torch.utils.data.RandomSampler(range(24), generator=generator)
    _, facts, _ = facts_of_crash(make_runner, train_dataloader={**loader_cfg(), "sampler": sampler})
    assert facts["samples"] is None


def test_the_last_lines_of_the_log_are_kept(make_runner):
    class Talks(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            for number in range(20):
                runner.logger.info("line %d of step %d", number, runner.iter + 1)

    _, facts, _ = facts_of_crash(make_runner, custom_hooks=[Talks(), Raise(7)])
    assert len(facts["log"]) == 50
    assert facts["log"][-1].endswith("INFO line 19 of step 8")
    assert facts["log"][-40].endswith("INFO line 0 of step 7")


def test_generators_are_told_by_digests_that_are_equal_where_their_states_are(make_runner):
    found = [facts_of_crash(make_runner)[1] for _ in range(2)]
    assert found[0]["generators"] == found[1]["generators"]
    assert {"python", "torch"} <= set(found[0]["generators"])
    before = rng_digests(torch.device("cpu"))
    torch.rand(1)
    after = rng_digests(torch.device("cpu"))
    assert [name for name in before if before[name] != after[name]] == ["torch"]


class RunsOut(Hook):
    """Fails as torch does where the device has no memory left."""

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 7:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def told(runner):
    return next(runner.log_dir.glob("*.log")).read_text().splitlines()[-1]


def test_running_out_of_memory_tells_what_needs_less(make_runner):
    runner, _, folder = facts_of_crash(
        make_runner, error=torch.cuda.OutOfMemoryError, custom_hooks=[RunsOut()]
    )
    line = told(runner)
    assert "failed in step 8 with OutOfMemoryError. To need less: " in line
    assert "train_dataloader.batch_size=2 with optim_wrapper.accumulative_counts=2" in line
    assert "AmpOptimWrapper" in line
    assert "activation_checkpointing" in line
    assert "expandable_segments" not in line  # on the CPU there are none
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "rank0.json"]


def test_what_is_done_already_is_not_advised(make_runner):
    amp = {"type": "AmpOptimWrapper", "dtype": "bfloat16", "accumulative_counts": 3}
    runner, _, _ = facts_of_crash(
        make_runner,
        error=torch.cuda.OutOfMemoryError,
        custom_hooks=[RunsOut()],
        optim_wrapper={**amp, "optimizer": {"type": "SGD", "lr": 0.1}},
    )
    assert "batch_size=2 with optim_wrapper.accumulative_counts=6" in told(runner)
    assert "mixed precision" not in told(runner)


def test_another_error_is_given_no_advice_on_memory(make_runner):
    runner, _, _ = facts_of_crash(make_runner)
    assert "To need less" not in told(runner)


class _Memory(SimpleNamespace):
    """Stands in for torch.cuda.memory: the names and the forms of what it returns are torch's."""

    def _snapshot(self):
        return {"segments": [], "device_traces": [self.trace]}

    def _dump_snapshot(self, filename):
        Path(filename).write_bytes(pickle.dumps(self._snapshot()))


@pytest.mark.parametrize("trace", [[], [{"action": "alloc", "size": 512}]], ids=["off", "on"])
def test_a_device_tells_of_its_memory_and_of_its_history_where_that_was_recorded(
    tmp_path, monkeypatch, trace
):
    # A stand-in for a device: without one torch.cuda would refuse.
    from mm_runner.crash._memory import _advice_on_allocator, keep_memory  # noqa: PLC0415

    summary = "|  PyTorch CUDA memory summary, device ID 0  |"
    module = SimpleNamespace(memory_summary=lambda _: summary, memory=_Memory(trace=trace))
    monkeypatch.setattr(torch, "cuda", module)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    keep_memory(torch.device("cuda"), tmp_path, 3)
    assert (tmp_path / "memory_rank3.txt").read_text() == f"{summary}\n"
    history = tmp_path / "memory_rank3.pickle"
    assert history.exists() == bool(trace)
    if trace:
        kept = pickle.loads(history.read_bytes())  # noqa: S301 - written just now
        assert kept["device_traces"] == [trace]
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in next(_advice_on_allocator("cuda"))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert not list(_advice_on_allocator("cuda"))


def test_a_summary_that_fails_does_not_hide_the_error(make_runner, monkeypatch):
    def fails(*_):
        raise RuntimeError("the device does not answer")

    monkeypatch.setattr("mm_runner.crash._bundle.keep_memory", fails)
    monkeypatch.setattr("mm_runner.crash._bundle.rng_digests", fails)
    _, facts, _ = facts_of_crash(
        make_runner, error=torch.cuda.OutOfMemoryError, custom_hooks=[RunsOut()]
    )
    assert facts["generators"] == {}
    assert facts["error"]["type"] == "OutOfMemoryError"


def _fail_with_a_record(rank, work_dir):
    # Stands in for NCCL's, which is recorded on CUDA only; mm-dist tests what it reads.
    mm_dist.read_flight_records = lambda: {"nccl": b"as torch wrote it"}
    runner = Runner(
        **runner_arguments(work_dir, launcher="none", custom_hooks=[Raise(1)], **NO_VALIDATION)
    )
    with pytest.raises(ArithmeticError):
        runner.train()
    record = runner.log_dir / "crash" / f"nccl_trace_rank_{rank}"
    assert record.read_bytes() == b"as torch wrote it"
    dist.barrier()


def test_the_record_of_collectives_is_kept_where_torch_has_one(run_ranks, tmp_path):
    run_ranks(_fail_with_a_record, 2, str(tmp_path))


def test_a_process_alone_keeps_no_record_of_a_group_that_it_once_had(make_runner, monkeypatch):
    monkeypatch.setattr(mm_dist, "read_flight_records", lambda: {"gloo": b"as torch wrote it"})
    _, _, folder = facts_of_crash(make_runner)
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "rank0.json"]
