"""What counts as time of a step, and what as waiting for data."""

import pytest
from toy import Blobs, Scripted, loader_cfg, scalars_of
from typing_extensions import override

from mm_runner.hooks import Hook


class Clock:
    """Time that passes only where a test says so."""

    now = 0.0

    def __call__(self):
        return self.now


class Takes(Hook):
    """Takes a second of each step, and eight after it, as one that writes a checkpoint."""

    priority = "LOWEST"

    def __init__(self, clock):
        self.clock = clock

    @override
    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.clock.now += 1

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.clock.now += 8


class SlowBlobs(Blobs):
    """Each sample takes a quarter of a second."""

    def __init__(self, clock):
        super().__init__(24)
        self.clock = clock

    def __getitem__(self, index):
        self.clock.now += 0.25
        return super().__getitem__(index)


class SlowMetric(Scripted):
    """Each validation takes an hour."""

    def __init__(self, clock):
        super().__init__(values=[0.5] * 4)
        self.clock = clock

    @override
    def compute_metrics(self, results):
        self.clock.now += 3600
        return super().compute_metrics(results)


@pytest.mark.parametrize(
    "train_cfg",
    [{"by_epoch": False, "max_iters": 12, "val_interval": 4}, {"max_epochs": 2}],
    ids=["steps", "epochs"],
)
def test_only_waiting_for_data_is_waiting_for_data(make_runner, monkeypatch, train_cfg):
    clock = Clock()
    monkeypatch.setattr("time.perf_counter", clock)
    runner = make_runner(
        train_dataloader=loader_cfg(dataset=SlowBlobs(clock)),
        train_cfg=train_cfg,
        val_evaluator=SlowMetric(clock),
        log_processor={"window_size": 1},
        default_hooks={"logger": {"interval": 1}},
        custom_hooks=[{"type": "ThroughputHook", "interval": 6}, Takes(clock)],
    )
    runner.train()
    records = [record for record in scalars_of(runner) if record["mode"] == "train"]
    steps = [record for record in records if "data_time" in record]
    assert len(steps) == 12
    # A batch of four takes a second, and so does the step; the hooks' time is the next step's.
    assert [record["data_time"] for record in steps] == [1.0] * 12
    is_first = [index % 6 == 0 if "max_epochs" in train_cfg else index == 0 for index in range(12)]
    assert [record["time"] for record in steps] == [2.0 if one else 10.0 for one in is_first]
    reports = [record for record in records if "data_wait_share" in record]
    assert all(report["data_wait_share"] < 0.2 for report in reports)
    assert len(reports) == 2
