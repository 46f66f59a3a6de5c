"""``build_dataloader`` and ``build_evaluator`` that a subclass overrides."""

from typing import ClassVar

import pytest
import torch
from torch.utils.data import DataLoader
from toy import NO_VALIDATION, Blobs, Classifier, loader_cfg, runner_arguments, weights_of
from typing_extensions import override

from mm_runner import ConfigError, Runner


def make(kind, tmp_path, **overrides):
    return kind(**runner_arguments(**{"work_dir": tmp_path / "run", **overrides}))


class ByMethod(Runner):
    seen: ClassVar = []

    @override
    def build_dataloader(self, dataloader, seed=None, diff_rank_seed=False):
        self.seen.append((seed, diff_rank_seed))
        return super().build_dataloader(dataloader, seed, diff_rank_seed)


class ByStaticMethod(Runner):
    @override
    @staticmethod
    def build_dataloader(dataloader, seed=None, diff_rank_seed=False):
        return Runner.build_dataloader(dict(dataloader), seed=seed, diff_rank_seed=diff_rank_seed)


@pytest.mark.parametrize("kind", [ByMethod, ByStaticMethod])
def test_a_loader_that_an_override_leaves_as_it_is_makes_the_same_run(tmp_path, kind):
    options = {
        "model": {"type": Classifier, "dropout": 0.5},
        "train_dataloader": loader_cfg(dataset=Blobs(noise=0.5), num_workers=1),
    }
    plain = make(Runner, tmp_path, **options)
    plain.train()
    other = make(kind, tmp_path, **options)
    other.train()
    assert torch.equal(weights_of(plain), weights_of(other))
    assert other.train_dataloader.generator is other.loader_generator
    assert other.train_dataloader.sampler.shuffle
    assert not other.val_dataloader.sampler.shuffle
    if kind is ByMethod:
        assert kind.seen == [(0, False)] * 2


def test_a_loader_that_an_override_changes_is_the_one_of_the_run(tmp_path):
    class Smaller(Runner):
        @override
        def build_dataloader(self, dataloader, seed=None, diff_rank_seed=False):
            return super().build_dataloader({**dataloader, "batch_size": 2}, seed, diff_rank_seed)

    class Foreign(Runner):
        def build_dataloader(self, dataloader, **_):
            return DataLoader(dataloader["dataset"], batch_size=3)

    class Wrong(Runner):
        def build_dataloader(self, dataloader, **_):
            return [dataloader["dataset"]]

    assert make(Smaller, tmp_path).train() is not None
    runner = make(Smaller, tmp_path)
    assert (runner.train_dataloader.batch_size, runner.val_dataloader.batch_size) == (2, 2)
    runner = make(Foreign, tmp_path)
    runner.train()
    assert (runner.max_iters, runner.train_dataloader.batch_size) == (16, 3)
    with pytest.raises(ConfigError, match=r"^train_dataloader: a DataLoader or a dict"):
        make(Wrong, tmp_path).train()


def _deal_out_own_loader(_rank, work_dir):
    class Foreign(Runner):
        def build_dataloader(self, dataloader, **_):
            return DataLoader(dataloader["dataset"], batch_size=dataloader["batch_size"])

    runner = make(Foreign, work_dir, launcher="none", **NO_VALIDATION)
    assert runner.train_loop.max_iters == 6
    assert len(runner.train_dataloader) == 3
    first, second = (
        torch.cat([batch["labels"] for batch in runner.train_dataloader]) for _ in range(2)
    )
    assert torch.equal(first, second)
    runner.train()
    assert runner.iter == 6


def test_ranks_deal_out_what_an_override_made_and_may_ask_for_the_loop(run_ranks, tmp_path):
    run_ranks(_deal_out_own_loader, 2, tmp_path)


def test_a_part_of_a_run_keeps_its_path_in_messages(tmp_path):
    class Passing(Runner):
        def build_evaluator(self, evaluator):
            return super().build_evaluator(evaluator)

        def build_dataloader(self, *args, **kwargs):
            return super().build_dataloader(*args, **kwargs)

    with pytest.raises(ConfigError, match=r"^val_dataloader: DataLoader refused"):
        _ = make(
            Passing,
            tmp_path,
            val_dataloader=loader_cfg(shuffle=True, sampler=torch.utils.data.SequentialSampler([])),
        ).val_loop
    with pytest.raises(ConfigError, match=r"^val_evaluator: a metric with process"):
        _ = make(Passing, tmp_path, val_evaluator=[{"type": lambda: 3}]).val_loop
    with pytest.raises(ConfigError, match=r"^evaluator: a metric with process"):
        Runner.build_evaluator([{"type": lambda: 3}])
