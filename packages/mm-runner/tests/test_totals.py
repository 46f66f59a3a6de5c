"""What lines say of all values of an epoch or a run, which nobody keeps."""

import statistics
from math import nan

import pytest
import torch
from test_line_values import ALL, KeepLosses, entry, expected, hub_of
from test_reporting import CountOps
from test_several_optimizers import scalars_of
from toy import NO_VALIDATION

from mm_runner.reporting import LogProcessor, MessageHub
from mm_runner.reporting._totals import _MOST_PENDING, _precision_of_sums


def test_what_is_not_a_number_is_neither_least_nor_greatest_of_many():
    cfg = [entry(method=name, name=name) for name in ("min", "max")]
    hub = LogProcessor(custom_cfg=cfg).message_hub()
    for index in range(3000):
        hub.update_scalar("train/loss", torch.tensor(nan if index % 3 == 0 else float(index)))
    means = hub.means("train")
    assert (means["min"], means["max"]) == (1.0, 2999.0)


def of_two_kinds(value):
    return torch.tensor(value, dtype=torch.float64 if value % 2 else torch.float32)


@pytest.mark.parametrize(
    "kind", [float, torch.tensor, of_two_kinds], ids=["numbers", "tensors", "dtypes"]
)
def test_memory_is_bounded_though_nobody_asks_and_nothing_is_forgotten(kind):
    hub = hub_of(entry(method="mean", name="mean"), entry(method="min", name="min"))
    num = 3 * _MOST_PENDING + 5
    with CountOps() as ops:
        for step in range(num):
            hub.update_scalar("train/loss", kind(float(step)))
    assert "_local_scalar_dense" not in ops.counts
    (window,) = hub._scalars.values()
    assert len(window.pending) < _MOST_PENDING
    assert len(window.condensed) <= 1
    assert hub.means("train") == {"loss": num - 1.5, "mean": (num - 1) / 2, "min": 0.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_many_small_values_are_not_lost_beside_large_ones(dtype):
    hub = hub_of(entry(method="mean", name="mean"), entry(method="max", name="max"))
    record = hub.recorder("train/loss")
    small, large = torch.tensor(0.1, dtype=dtype), torch.tensor(2.0**30, dtype=dtype)
    record(large)
    for _ in range(100_000):
        record(small)
    record(-large)
    means = hub.means("train")
    assert means["mean"] == pytest.approx(small.item() * 100_000 / 100_002, rel=1e-6)
    assert means["max"] == large.item()


def test_sums_on_a_device_without_float64_are_of_float32(monkeypatch):
    assert {_precision_of_sums(name) for name in ("mps", "npu")} == {torch.float32}
    assert _precision_of_sums("cuda") is torch.float64
    monkeypatch.setattr("mm_runner.reporting._totals._WITHOUT_FLOAT64", ("cpu",))
    hub = hub_of(entry(name="mean"))
    with CountOps() as ops:
        for step in range(2 * _MOST_PENDING):
            hub.update_scalar("train/loss", torch.tensor(float(step)))
    (window,) = hub._scalars.values()
    ((num, parts),) = window.condensed.values()
    assert (num, parts.dtype) == (2 * _MOST_PENDING, torch.float32)
    assert ops.counts["stack"] == 4  # the values and what they give, two times
    assert hub.means("train")["mean"] == _MOST_PENDING - 0.5


def test_what_was_said_of_the_run_goes_on_from_a_state():
    values = [3.0, 9.0, 1.0, 4.0, 2.0, 8.0]
    whole = hub_of(*ALL)
    part = hub_of(*ALL)
    for step, value in enumerate(values):
        if step == 4:  # in the middle of the epoch that began with step 2
            state = part.state_dict()
            assert all(isinstance(v, (int, float)) for one in state.values() for v in one)
            part = hub_of(*ALL)
            part.load_state_dict(state)
            part.begin_epoch(1)
        for hub in (whole, part):
            if step in (0, 2):
                hub.begin_epoch(step // 2)
            hub.update_scalar("train/loss", value)
    assert part.means("train") == whole.means("train") == pytest.approx(expected(values, 2))
    # What is no longer asked for, or was not asked for before, is no matter.
    other = MessageHub()
    other.load_state_dict(part.state_dict())
    assert other.means("train") == {"loss": pytest.approx(statistics.fmean(values[-5:]))}
    part.load_state_dict(MessageHub().state_dict())
    assert part.means("train") == {}
    part.update_scalar("train/loss", 5.0)
    assert set(part.means("train").values()) == {5.0, 0.0}  # all but the spread


def test_a_validation_that_is_over_ends_its_epoch_but_not_the_run():
    hub = hub_of(
        entry("time", "max", "epoch_max", "epoch"), entry("time", "max", "ever_max", "global")
    )
    for seconds in (5.0, 2.0):
        hub.update_scalar("val/time", seconds)
        found = hub.means("val")
        hub.clear("val")
    assert found == {"time": 2.0, "epoch_max": 2.0, "ever_max": 5.0}


def test_an_epoch_begins_anew_in_a_second_training_but_not_when_resuming(make_runner, tmp_path):
    options = {
        "train_cfg": {"max_epochs": 1},
        "default_hooks": {"logger": {"interval": 6}, "checkpoint": {"by_epoch": False}},
        "log_processor": {"custom_cfg": [entry(name="mean_epoch", window="epoch")]},
        **NO_VALIDATION,
    }
    options["default_hooks"]["checkpoint"]["interval"] = 4
    seen = KeepLosses()
    runner = make_runner(work_dir=tmp_path / "run", custom_hooks=[seen], **options)
    for _ in range(2):
        seen.losses.clear()
        runner.train()
        mean = pytest.approx(statistics.fmean(seen.losses), rel=1e-5)
        assert (len(seen.losses), scalars_of(runner)[-1]["mean_epoch"]) == (6, mean)
    # In the middle of the second training's epoch.
    (tmp_path / "run" / "last_checkpoint").write_text("iter_4.pth")
    resumed = make_runner(work_dir=tmp_path / "run", resume=True, **options)
    resumed.train()
    assert scalars_of(resumed)[-1]["mean_epoch"] == mean


def test_an_epoch_goes_on_once_from_a_state():
    hub = hub_of(entry(name="mean_epoch", window="epoch"))
    hub.begin_epoch(0)
    hub.update_scalar("train/loss", 4.0)
    state = hub.state_dict()
    for epochs, mean in (([0], 3.0), ([0, 0], 2.0), ([1], 2.0), ([1, 0], 2.0)):
        hub.load_state_dict(state)
        for epoch in epochs:
            hub.begin_epoch(epoch)
        hub.update_scalar("train/loss", 2.0)
        assert hub.means("train")["mean_epoch"] == mean
