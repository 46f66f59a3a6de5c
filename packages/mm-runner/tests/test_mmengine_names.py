"""Names of MMEngine's training side, where its users look for them."""

import logging
import textwrap

import pytest
import torch
from torch import nn

from mm_amp import OptimWrapper
from mm_runner.device import get_device, is_cuda_available, is_mlu_available, is_npu_available
from mm_runner.evaluator import BaseMetric, Evaluator
from mm_runner.hooks import EMAHook, Priority, get_priority
from mm_runner.logging import MessageHub, MMLogger, print_log
from mm_runner.model import ExponentialMovingAverage

# Written for MMEngine.
SCRIPT = """
    import torch
    from mmengine.config import Config
    from mmengine.dist import get_rank, get_world_size, master_only
    from mmengine.evaluator import BaseMetric, Evaluator
    from mmengine.hooks import CheckpointHook, EMAHook, Hook
    from mmengine.logging import MessageHub, MMLogger, print_log
    from mmengine.model import BaseModel, ExponentialMovingAverage
    from mmengine.optim import AmpOptimWrapper, CosineAnnealingLR, OptimWrapper, build_optim_wrapper
    from mmengine.registry import DATASETS, HOOKS, METRICS, MODELS
    from mmengine.runner import EpochBasedTrainLoop, Runner, load_checkpoint, save_checkpoint

    @MODELS.register_module()
    class Net(BaseModel):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            MMLogger.get_current_instance().info("a net is built")

        def forward(self, inputs, labels, mode="tensor"):
            scores = self.layer(inputs)
            if mode == "loss":
                return dict(loss=torch.nn.functional.cross_entropy(scores, labels))
            return (scores, labels) if mode == "predict" else scores

    @METRICS.register_module()
    class Hits(BaseMetric):
        def process(self, data_batch, data_samples):
            self.results.append((data_samples[0].argmax(1) == data_samples[1]).float().mean())

        def compute_metrics(self, results):
            return dict(hits=torch.stack(results).mean().reshape(1))

    @HOOKS.register_module()
    class Watch(Hook):
        priority = "LOW"

        def after_train_epoch(self, runner):
            if self.every_n_epochs(runner, 2) and get_rank() == 0:
                print_log(f"epoch {MessageHub.get_current_instance().get_info('epoch')}", "current")

    @DATASETS.register_module()
    def points():
        inputs = torch.randn(32, 2, generator=torch.Generator().manual_seed(0))
        return torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())

    loader = dict(dataset=dict(type="points"), batch_size=8, collate_fn="default_collate")
    cfg = Config(dict(
        model=dict(type="Net"),
        work_dir="work",
        train_dataloader=dict(**loader, sampler=dict(type="DefaultSampler", shuffle=True)),
        val_dataloader=loader,
        train_cfg=dict(type=EpochBasedTrainLoop, max_epochs=2),
        val_cfg=dict(),
        val_evaluator=dict(type="Hits"),
        optim_wrapper=dict(type=OptimWrapper, optimizer=dict(type="SGD", lr=0.5)),
        param_scheduler=dict(type=CosineAnnealingLR, T_max=2),
        default_hooks=dict(checkpoint=dict(type=CheckpointHook, save_best="hits", rule="greater")),
        custom_hooks=[dict(type="Watch"), dict(type=EMAHook)],
    ))
    runner = Runner.from_cfg(cfg)
    model = runner.train()
    save_checkpoint(dict(state_dict=model.state_dict()), "out/net.pth")
    load_checkpoint(Net(), "out/net.pth", strict=True)
    wrapper = build_optim_wrapper(model, dict(type="OptimWrapper", optimizer=dict(type="Adam")))
    schedule = CosineAnnealingLR(wrapper, T_max=4, by_epoch=False)
    for _ in range(3):
        wrapper.update_params(model(*runner.train_dataloader.dataset[:8], mode="loss")["loss"])
        schedule.step()
    print(sorted(runner.val()), get_world_size(), schedule.get_last_value()[0])
"""


def test_a_script_written_for_mmengine_runs(run_script, tmp_path):
    done = run_script(textwrap.dedent(SCRIPT).replace("mmengine", "mm_runner"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "INFO a net is built" in done.stdout
    assert "INFO epoch 1" in done.stdout
    assert "['hits'] 1 0.0001464" in done.stdout
    assert list((tmp_path / "work").glob("best_hits*.pth"))


@pytest.mark.parametrize("value", [torch.tensor([0.5]), torch.tensor(0.5)], ids=["one", "scalar"])
def test_metrics_of_one_element_are_numbers(value, make_runner):
    class Half(BaseMetric):
        def process(self, data_batch, data_samples):
            pass

        def compute_metrics(self, results):  # noqa: ARG002 - MMEngine's signature
            return {"half": value}

    assert Evaluator(Half()).evaluate(0) == {"half": 0.5}
    schedule = {"type": "ReduceOnPlateauLR", "monitor": "half", "patience": 0, "factor": 0.5}
    runner = make_runner(
        val_evaluator=Half(),
        train_cfg={"max_epochs": 2},
        param_scheduler=schedule,
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 1.0}},
        default_hooks={"checkpoint": {"save_best": "half", "rule": "less"}},
    )
    runner.train()
    assert runner.optim_wrapper.get_lr()["lr"] == [0.5]
    assert list(runner.work_dir.glob("best_half*.pth"))
    assert runner.message_hub.get_scalar("val/half").current() == 0.5


def test_averages_follow_a_model_outside_of_a_run(make_runner):
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    average = ExponentialMovingAverage(model, momentum=0.5)
    average.update_parameters(model)
    expected = (model.weight + other.weight).detach() / 2
    average.update_parameters(other)
    torch.testing.assert_close(average.averages["weight"], expected)
    hook = EMAHook()
    make_runner(custom_hooks=[hook], train_cfg={"max_epochs": 1}).train()
    assert hook.ema_model.steps == 6


def test_priorities_have_names():
    assert get_priority(Priority.LOW) == get_priority("low") == get_priority(70) == 70


def test_the_clipping_of_a_wrapper_is_readable():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert OptimWrapper(optimizer).clip_grad_kwargs is None
    wrapper = OptimWrapper(optimizer, clip_grad={"type": "norm", "max_norm": 2})
    assert wrapper.clip_grad_kwargs == {"max_norm": 2}


def test_log_lines_go_to_the_newest_run(make_runner, capsys):
    assert MMLogger.get_current_instance().name
    runner = make_runner()
    assert MMLogger.get_current_instance() is runner.logger
    assert MessageHub.get_current_instance() is runner.message_hub
    print_log("printed")
    print_log("hidden", "silent")
    print_log("logged", "current", logging.WARNING)
    print_log("given", runner.logger)
    said = capsys.readouterr().out
    assert "printed\n" in said
    assert "hidden" not in said
    assert "WARNING logged" in said
    assert "INFO given" in said


def test_devices_are_those_of_torch():
    assert (get_device() == "cuda") == (is_cuda_available() and not is_npu_available())
    assert is_mlu_available() == hasattr(torch, "mlu")
