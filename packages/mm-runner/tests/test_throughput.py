"""What a run tells of its speed; the numbers themselves are the machine's."""

import time

import pytest
import torch
from toy import NO_VALIDATION, Blobs, Classifier, loader_cfg, log_of, runner_arguments, scalars_of
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.diagnostics import ThroughputHook
from mm_runner.diagnostics._throughput import count_samples
from mm_runner.hooks import Hook


def reports_of(runner):
    return [record for record in scalars_of(runner) if "data_wait_share" in record]


def test_a_run_tells_its_throughput_at_intervals(make_runner):
    hook = ThroughputHook(interval=3, tokens="inputs")
    runner = make_runner(custom_hooks=[hook])
    began = time.perf_counter()
    runner.train()
    took = time.perf_counter() - began
    reports = reports_of(runner)
    assert [report["step"] for report in reports] == [3, 6, 9, 12]
    for report in reports:
        assert report["samples_per_s"] > 12 / took  # it took less than all of it
        assert report["tokens_per_s"] == pytest.approx(4 * report["samples_per_s"])
        assert 0 <= report["data_wait_share"] < 1
    lines = [line for line in log_of(runner).splitlines() if "Throughput: " in line]
    assert len(lines) == 4
    assert all(" samples/s, " in line and "% waiting for data" in line for line in lines)
    assert hook.ranks[0].samples == 12


def test_flops_are_reported_where_they_are_given(make_runner):
    hook = ThroughputHook(interval=6, flops_per_sample=1000.0, peak_flops=1e9)
    runner = make_runner(custom_hooks=[hook], **NO_VALIDATION)
    runner.train()
    report = reports_of(runner)[-1]
    assert report["flops_per_s"] == pytest.approx(1000 * report["samples_per_s"])
    assert report["mfu"] == pytest.approx(report["flops_per_s"] / 1e9)


def test_validations_are_left_out(make_runner):
    class Slow(Hook):
        @override
        def before_val_epoch(self, runner):
            time.sleep(0.5)

    hook = ThroughputHook(interval=9)
    runner = make_runner(custom_hooks=[hook, Slow()])
    began = time.perf_counter()
    runner.train()
    took = time.perf_counter() - began
    assert hook.ranks[0].steps == 9  # with the validation after the sixth
    assert hook.ranks[0].elapsed_s < took - 2 * 0.5


class SlowClassifier(Classifier):
    """Its forward takes long on one rank."""

    def forward(self, inputs, labels, mode="tensor"):
        if torch.distributed.get_rank() == 1:
            time.sleep(0.3)
        return super().forward(inputs, labels, mode)


class SlowBlobs(Blobs):
    """Its samples take long on one rank."""

    def __getitem__(self, index):
        if torch.distributed.get_rank() == 0:
            time.sleep(0.1)
        return super().__getitem__(index)


def _name_the_slowest(rank, work_dir):
    for part, model, dataset in (("model", SlowClassifier, Blobs), ("data", Classifier, SlowBlobs)):
        hook = ThroughputHook(interval=4)
        runner = Runner(
            **runner_arguments(
                f"{work_dir}/{part}",
                model={"type": model},
                train_dataloader=loader_cfg(batch_size=3, dataset=dataset()),
                custom_hooks=[hook],
                launcher="none",
                **NO_VALIDATION,
            )
        )
        runner.train()
        slow = 1 if part == "model" else 0
        assert [one.samples for one in hook.ranks] == [12, 12]
        if rank == 0:
            assert f"slowest is rank {slow}, 0." in log_of(runner)
            report = reports_of(runner)[-1]
            assert report["slowest_rank"] == slow
            assert report["lag_s"] > 0.1
            share = report["data_wait_share"]
            assert share > 0.5 if part == "data" else share < 0.5


def test_the_slowest_of_two_ranks_is_named(run_ranks, tmp_path):
    run_ranks(_name_the_slowest, 2, str(tmp_path))


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ({"inputs": torch.ones(8, 3), "labels": torch.ones(8)}, 8),
        ({"inputs": [torch.ones(3, 2, 2)] * 5, "data_samples": [None] * 5}, 5),
        ((torch.ones(7, 2), torch.ones(7)), 7),
        ([{"x": 1}, {"x": 2}, {"x": 3}], 3),
        ({}, 1),
    ],
    ids=["dict", "pseudo", "tuple", "samples", "empty"],
)
def test_samples_are_counted_in_any_batch(batch, samples):
    assert count_samples(batch) == samples


def test_a_key_that_is_no_tensor_of_the_batch_is_named(make_runner):
    hook = ThroughputHook(tokens="idz")
    with pytest.raises(ConfigError, match=r"tokens: 'idz' is no tensor.*'inputs'"):
        make_runner(custom_hooks=[hook], **NO_VALIDATION).train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": 0}, r"interval: an integer >= 1 is needed, got 0"),
        ({"flops_per_sample": 0}, r"flops_per_sample: a positive number, got 0"),
    ],
    ids=["interval", "flops"],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=rf"ThroughputHook\.{message}"):
        ThroughputHook(**options)
