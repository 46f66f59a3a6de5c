"""A validation of a few batches before training, of which nothing remains."""

import random
import threading
import time

import pytest
import torch
import torch.distributed as dist
from test_resume_midway import Seen, assert_alike, state_of
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from toy import NO_VALIDATION, Blobs, Classifier, Scripted, loader_cfg, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.errors import RunStopped
from mm_runner.evaluator import DumpResults, Evaluator
from mm_runner.hooks import Hook
from mm_runner.model import BaseModel


class Drawing(BaseModel):
    """Draws random numbers when it predicts, and counts in a buffer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.register_buffer("predictions", torch.zeros(()))

    def forward(self, inputs, labels, mode="tensor"):
        if mode == "predict":
            self.predictions += 1
            random.random()  # noqa: S311
            return self.layers(inputs) + torch.randn(3), labels
        return {"loss": nn.functional.cross_entropy(self.layers(inputs), labels)}


class Stages(Hook):
    def __init__(self):
        self.stages = []

    @override
    def before_train(self, runner):
        self.stages.append("before_train")

    @override
    def before_val(self, runner):
        self.stages.append("before_val")

    @override
    def after_val_epoch(self, runner, metrics=None):
        self.stages.append(metrics)


def _log(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def user_loader(**options):
    data = Blobs(9, noise=0.5)
    generator = torch.Generator().manual_seed(3)
    sampler = RandomSampler(data, generator=generator)
    return DataLoader(data, batch_size=4, sampler=sampler, **options)


@pytest.mark.parametrize(
    ("val_dataloader", "train_cfg"),
    [
        (lambda: loader_cfg(dataset=Blobs(9, noise=0.5), num_workers=1), {"max_epochs": 2}),
        (user_loader, {"by_epoch": False, "max_iters": 9}),
    ],
    ids=["persistent-worker", "users-own-numbers"],
)
def test_training_goes_as_without(make_runner, tmp_path, train_cfg, val_dataloader):
    ends = []
    intervals = {} if "max_epochs" in train_cfg else {"val_interval": 5}
    for number in (0, 2):
        seen, stages, metric = Seen(), Stages(), Scripted(values=[0.1, 0.2])
        runner = make_runner(
            work_dir=tmp_path / str(number),
            model={"type": Drawing},
            train_cfg={**train_cfg, **intervals, "sanity_val_batches": number},
            val_dataloader=val_dataloader(),
            val_evaluator=[{"type": "Accuracy", "prefix": "val"}, metric],
            custom_hooks=[seen, stages, {"type": "EarlyStoppingHook", "monitor": "accuracy"}],
            default_hooks={"checkpoint": {"save_best": "accuracy", "interval": 1}},
        )
        runner.train()
        scalars = (runner.log_dir / "scalars.jsonl").read_text().count('"val"')
        ends.append((state_of(runner), seen.steps, stages.stages, metric.sizes, scalars))
    assert_alike(*(dict(enumerate(end)) for end in reversed(ends)))
    assert "The first 2 batches could be validated" in _log(runner)
    assert "val/accuracy, accuracy" in _log(runner)


def test_a_mistake_shows_before_the_first_step(make_runner):
    class Broken(Classifier):
        def forward(self, inputs, labels, mode="tensor"):
            if mode == "predict":
                raise RuntimeError("no prediction")
            return super().forward(inputs, labels, mode)

    stages = Stages()
    runner = make_runner(
        model=Broken(),
        train_cfg={"max_epochs": 2, "sanity_val_batches": 1},
        custom_hooks=[stages],
        cfg={"crash_bundle": False},
    )
    with pytest.raises(RuntimeError, match="no prediction"):
        runner.train()
    assert runner.iter == 0
    assert stages.stages == []
    assert "before training (train_cfg.sanity_val_batches) failed" in _log(runner)


def test_a_metric_gets_the_first_batches_only(make_runner, tmp_path):
    sizes = []

    class Sized(Scripted):
        def compute_metrics(self, results):
            sizes.append(len(results))
            return {"accuracy": 0.5}

    dump = {"type": "DumpResults", "out_file_path": str(tmp_path / "out.pkl")}

    class NoFile(Hook):
        @override
        def before_train(self, runner):
            assert not (tmp_path / "out.pkl").exists()

    runner = make_runner(
        train_cfg={"max_epochs": 1, "sanity_val_batches": 2},
        val_evaluator=[Sized(), dump],
        custom_hooks=[NoFile()],
    )
    runner.train()
    assert sizes == [8, 9]
    assert (tmp_path / "out.pkl").exists()


class Locked(Scripted):
    """Cannot be copied."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.lock = threading.Lock()

    def compute_metrics(self, results):
        self.sizes.append(len(results))
        return {"accuracy": 0.5}


def test_metrics_that_cannot_be_copied_write_no_file_either(make_runner, tmp_path):
    path, metric = tmp_path / "out.pkl", Locked()

    class NoFile(Hook):
        @override
        def before_train(self, runner):
            assert not path.exists()
            assert [type(one) for one in evaluator.metrics] == [Locked, DumpResults]

    evaluator = Evaluator([metric, {"type": "DumpResults", "out_file_path": str(path)}])
    make_runner(
        train_cfg={"max_epochs": 1, "sanity_val_batches": 2},
        val_evaluator=evaluator,
        custom_hooks=[NoFile()],
    ).train()
    assert metric.sizes == [8, 9]
    assert path.exists()


def test_a_run_that_overrides_call_hook_calls_none(tmp_path):
    stages = []

    class Calls(Runner):
        @override
        def call_hook(self, stage, **arguments):
            stages.append(stage)
            super().call_hook(stage, **arguments)

    train_cfg = {"max_epochs": 1, "sanity_val_batches": 1}
    Calls(**runner_arguments(tmp_path / "run", train_cfg=train_cfg)).train()
    assert stages[:3] == ["before_run", "before_train", "before_train_epoch"]
    assert stages.count("before_val") == stages.count("after_val_epoch") == 1
    assert stages.count("after_train_iter") == 6


def test_a_resumed_run_leaves_it_out(make_runner):
    make_runner(train_cfg={"max_epochs": 1}).train()
    runner = make_runner(resume=True, train_cfg={"max_epochs": 2, "sanity_val_batches": 2})
    runner.train()
    assert "could be validated" not in _log(runner)


def test_without_a_validation_there_is_a_word(make_runner):
    runner = make_runner(train_cfg={"max_epochs": 1, "sanity_val_batches": 2}, **NO_VALIDATION)
    runner.train()
    assert "sanity_val_batches: 2 was given, and the run has no validation" in _log(runner)


@pytest.mark.parametrize("value", [-1, True, 1.5], ids=str)
def test_a_number_of_batches_is_needed(make_runner, value):
    with pytest.raises(ConfigError, match=r"train_cfg\.sanity_val_batches: an integer"):
        make_runner(train_cfg={"max_epochs": 1, "sanity_val_batches": value}).train()


class Asking(Dataset):
    """Asks for a stop when the first sample is read."""

    def __init__(self):
        self.blobs, self.runner = Blobs(9), None

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if self.runner is not None:
            self.runner.interruption.preempt()
        return self.blobs[index]


def test_a_stop_waits_for_the_first_step(make_runner):
    data, metric = Asking(), Locked()
    runner = make_runner(
        val_dataloader=loader_cfg(dataset=data, batch_size=3),
        val_evaluator=metric,
        train_cfg={"max_epochs": 2, "sanity_val_batches": 2},
    )
    data.runner = runner
    with pytest.raises(RunStopped):
        runner.train()
    assert runner.iter == 1
    # It was cut, and tells nothing.
    assert metric.sizes == metric.results == []
    assert "sanity_val_batches" not in _log(runner)
    assert runner.val_loop.limit is None
    data.runner = None
    assert runner.val() == {"accuracy": 0.5}
    assert metric.sizes == [9]


@pytest.mark.skipif(
    not hasattr(getattr(torch, "compiler", None), "set_stance"), reason="came with torch 2.6"
)
def test_what_is_compiled_sees_nothing_of_it(make_runner):
    runner = make_runner(
        train_cfg={"max_epochs": 1, "sanity_val_batches": 2},
        val_dataloader=loader_cfg(size=9, batch_size=3),
        cfg={"compile": {"backend": "eager"}},
    )
    graphs = []

    class Graphs(Hook):
        @override
        def before_train(self, runner):
            graphs.append(runner.compile_handle.report().graphs)

    runner.register_hook(Graphs())
    runner.train()
    assert graphs == [0]
    assert runner.compile_handle.report().graphs >= 2


class AskLate(Locked):
    """Asks for a stop in one rank's last batch, which the other one has behind it."""

    def process(self, data_batch, data_samples):
        super().process(data_batch, data_samples)
        if self.runner.iter == 0 and self.runner.rank == 1:
            time.sleep(0.5)
            self.runner.interruption.preempt()
            while not self.runner.interruption.pending:
                time.sleep(0.001)


def _ranks_are_asked_to_stop(rank, work_dir):
    metric = AskLate()
    runner = metric.runner = Runner(
        **runner_arguments(
            work_dir,
            val_evaluator=metric,
            train_cfg={"max_epochs": 2, "sanity_val_batches": 1},
            launcher="none",
        )
    )
    with pytest.raises(RunStopped):
        runner.train()
    assert metric.sizes == []
    assert rank or "sanity_val_batches" not in _log(runner)
    dist.barrier()


def test_ranks_give_it_up_together(run_ranks, tmp_path):
    run_ranks(_ranks_are_asked_to_stop, 2, str(tmp_path))


def _two_ranks(_, work_dir):
    ends = []
    for number in (0, 2):
        seen = Seen()
        runner = Runner(
            **runner_arguments(
                f"{work_dir}/{number}",
                model={"type": Classifier, "dropout": 0.3},
                train_dataloader=loader_cfg(batch_size=2),
                train_cfg={"max_epochs": 2, "sanity_val_batches": number},
                custom_hooks=[seen],
                launcher="none",
            )
        )
        runner.train()
        ends.append((state_of(runner), seen.steps))
    assert_alike(*(dict(enumerate(end)) for end in reversed(ends)))
    dist.barrier()


def test_ranks_go_on_as_without(run_ranks, tmp_path):
    run_ranks(_two_ranks, 2, str(tmp_path))
