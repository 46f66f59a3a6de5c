import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from toy import NO_VALIDATION, Classifier, Scripted, loader_cfg, runner_arguments

import mm_dist
from mm_runner import CheckpointError, ConfigError, Runner, WorkDirError
from mm_runner.errors import CheckpointWriteError
from mm_runner.registry import MODEL_WRAPPERS


class StepFree(DistributedDataParallel):
    """A user's wrapper that brings no ``train_step``."""

    calls = 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return super().forward(*args, **kwargs)


def is_equal_on_all_ranks(model):
    flat = torch.cat([value.detach().flatten() for value in model.state_dict().values()])
    gathered = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, flat)
    return all(torch.equal(one, flat) for one in gathered)


@pytest.mark.usefixtures("group_of_one")
def test_a_run_in_a_group_is_wrapped_by_default(make_runner):
    runner = make_runner(cfg={"find_unused_parameters": True})
    assert type(runner.model) is mm_dist.MMDistributedDataParallel
    assert runner.model.find_unused_parameters
    assert runner.distributed
    assert runner.model_name == "Classifier"


@pytest.mark.usefixtures("group_of_one")
def test_default_arguments_are_the_same_with_and_without_a_wrapper_config(make_runner):
    models = [
        make_runner(cfg=cfg).model
        for cfg in ({}, {"model_wrapper_cfg": {}}, {"model_wrapper_cfg": {"bucket_cap_mb": 1}})
    ]
    for model in models:
        assert type(model) is mm_dist.MMDistributedDataParallel
        assert not model.find_unused_parameters
        assert not model.broadcast_buffers
    model = make_runner(cfg={"model_wrapper_cfg": {"find_unused_parameters": True}}).model
    assert model.find_unused_parameters


@pytest.mark.usefixtures("group_of_one")
def test_torchs_own_wrapper_can_be_named(make_runner):
    runner = make_runner(cfg={"model_wrapper_cfg": {"type": "DistributedDataParallel"}})
    assert type(runner.model) is DistributedDataParallel
    runner.train()
    assert runner.epoch == 2


def _train(rank, work_dir):
    torch.manual_seed(rank)  # the ranks' models differ until the wrapper makes them equal
    trained = {}
    for name, cfg in {"ours": {}, "step-free": {"model_wrapper_cfg": {"type": StepFree}}}.items():
        runner = Runner(
            **runner_arguments(
                f"{work_dir}/{name}",
                model=Classifier(),
                cfg=cfg,
                train_dataloader=loader_cfg(batch_size=2),
                randomness={"seed": 3},
                default_hooks={"checkpoint": {"save_best": "accuracy"}},
                auto_scale_lr={"base_batch_size": 8, "enable": True},
            )
        )
        assert runner.seed == 3
        assert (runner.rank, runner.world_size) == (rank, 2)
        before = [value.clone() for value in runner.model.state_dict().values()]
        runner.train()
        assert runner.iter == 12
        assert runner.optim_wrapper.param_groups[0]["lr"] == 0.1 * 4 / 8
        assert is_equal_on_all_ranks(runner.model)
        after = runner.model.state_dict().values()
        assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        trained[name] = runner
    assert type(trained["ours"].model) is mm_dist.MMDistributedDataParallel
    assert trained["step-free"].model.calls == 12
    assert os.listdir(trained["ours"].log_dir).count("scalars.jsonl") == 1  # noqa: PTH208
    log = (trained["ours"].log_dir / f"{trained['ours'].timestamp}.log").read_text()
    assert log.count("Epoch(val)") == 2


def test_ranks_train_alike_in_our_wrapper_and_in_one_without_steps(run_ranks, tmp_path):
    run_ranks(_train, 2, tmp_path)


class Normalized(Classifier):
    """Has a batch normalization, of which each process alone would see its own batch."""

    def __init__(self):
        super().__init__()
        self.layers.insert(1, nn.BatchNorm1d(8))


def _train_on(batch_size, work_dir, model_type=Classifier, **cfg):
    torch.manual_seed(0)
    runner = Runner(
        **runner_arguments(
            work_dir,
            model=model_type(),
            train_dataloader=loader_cfg(batch_size=batch_size),
            cfg=cfg,
            **NO_VALIDATION,
        )
    )
    runner.train()
    return [value.detach() for value in runner.model.state_dict().values()]


def _expect_parameters(_rank, expected, work_dir, *model_type, **cfg):
    got = _train_on(2, work_dir, *model_type, **cfg)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_two_ranks_equal_one_process_with_batches_twice_as_large(run_ranks, tmp_path):
    expected = _train_on(4, tmp_path / "one")
    run_ranks(_expect_parameters, 2, expected, tmp_path / "two")


def _expect_normalized(rank, expected, work_dir):
    _expect_parameters(rank, expected, work_dir / "synchronized", Normalized, sync_bn="torch")
    with pytest.raises(AssertionError, match="not close"):
        _expect_parameters(rank, expected, work_dir / "apart", Normalized)


def test_batch_normalization_uses_the_batches_of_all_ranks_if_that_is_asked_for(
    run_ranks, tmp_path
):
    expected = _train_on(4, tmp_path / "one", Normalized, sync_bn="torch")
    run_ranks(_expect_normalized, 2, expected, tmp_path / "two")


def _evaluate(rank, work_dir):
    metric = Scripted(values=[0.5, 0.25])
    runner = Runner(
        **runner_arguments(
            work_dir,
            val_dataloader=loader_cfg(size=7, batch_size=2),
            val_evaluator=[metric, {"type": "Accuracy", "prefix": "real"}],
        )
    )
    metrics = runner.val()
    gathered = [None, None]
    dist.all_gather_object(gathered, metrics)
    assert gathered[0] == gathered[1] == metrics
    assert metrics["accuracy"] == 0.5
    # Seven samples on two ranks: one was seen twice, and counts once.
    assert metrics["real/accuracy"] * 7 == pytest.approx(round(metrics["real/accuracy"] * 7))
    assert metric.sizes == ([7] if rank == 0 else [])
    assert runner.val()["accuracy"] == 0.25


def test_an_uneven_dataset_is_evaluated_once_per_sample(run_ranks, tmp_path):
    run_ranks(_evaluate, 2, tmp_path / "run")


def _fail_together(rank, tmp_path):
    runner = Runner(**runner_arguments(tmp_path / "run"))
    runner.train()
    assert (runner.work_dir / "last_checkpoint").read_text() == "epoch_2.pth\n"
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointWriteError, match=r"Writing .*x\.pth failed"):
        runner.save_checkpoint(tmp_path / "file", "x.pth")
    with pytest.raises(WorkDirError, match=r"was asked for; it cannot be written"):
        Runner(**runner_arguments(tmp_path / "file" / "below"))

    resumed = Runner(**runner_arguments(tmp_path / "run", resume=True))
    resumed.train()
    assert (resumed.epoch, resumed.iter) == (2, runner.iter)
    assert is_equal_on_all_ranks(resumed.model)

    os.chdir(tmp_path / ("run" if rank == 0 else ""))  # as if their disks were not the same
    with pytest.raises(CheckpointError, match=r"epoch_2\.pth was asked for; there is no such file"):
        Runner(**runner_arguments(tmp_path / "run", load_from="epoch_2.pth")).train()

    dist.barrier()
    if rank == 0:
        for path in (tmp_path / "run").glob("epoch_*.pth"):
            path.write_bytes(b"garbage")
    dist.barrier()
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints"):
        Runner(**runner_arguments(tmp_path / "run", resume=True)).train()


def test_failures_of_the_main_process_reach_every_rank(run_ranks, tmp_path):
    run_ranks(_fail_together, 2, tmp_path)


def test_a_ready_loader_is_dealt_out_to_the_ranks(run_ranks, tmp_path):
    run_ranks(_deal_out, 2, tmp_path)


def _deal_out(_rank, work_dir):
    loader = torch.utils.data.DataLoader(loader_cfg()["dataset"], batch_size=4)
    runner = Runner(**runner_arguments(work_dir / "run", train_dataloader=loader))
    runner.train()
    seen = list(runner.train_dataloader.sampler)
    everybodys = {index for one in mm_dist.all_gather_object(seen) for index in one}
    assert everybodys == set(range(len(loader.dataset)))
    assert len(seen) == -(-len(loader.dataset) // 2)
    uneven = loader_cfg(7, 1, sampler={"type": "DefaultSampler", "round_up": False})
    with pytest.raises(ConfigError, match=r"has 4 batches on process 0, and 3 on process 1"):
        Runner(**runner_arguments(work_dir / "run", train_dataloader=uneven)).train()


def test_wrappers_registry_knows_ours_by_name():
    assert MODEL_WRAPPERS.get("MMDistributedDataParallel") is mm_dist.MMDistributedDataParallel
