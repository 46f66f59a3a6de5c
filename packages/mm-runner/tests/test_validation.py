"""What is told to be wrong before anything is built, by the path of the key."""
# ruff: noqa: E501 - a table reads best with a case in each line

import pytest
import torch
from strict_task import Neck, Net, StopAt
from torch.optim import SGD
from toy import Classifier, loader_cfg, runner_arguments

from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.evaluator import Accuracy
from mm_runner.hooks import LoggerHook, build_hooks
from mm_runner.model import BaseDataPreprocessor
from mm_runner.runner._checks import checked_cfg
from mm_runner.tools import make_plan
from mm_runner.validation import validate_run

_SGD = {"type": "SGD", "lr": 0.1}
_ONE = {"optimizer": _SGD}


def check(tmp_path, **overrides):
    cfg, arguments = overrides.pop("cfg", {}), runner_arguments(tmp_path, **overrides)
    validate_run(arguments, cfg, Runner)
    build_hooks(arguments.get("default_hooks"), arguments.get("custom_hooks"))


def loader_with(**options):
    return {**loader_cfg(), **options}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optim_wrapper": {"optimizer": {"type": "SGD", "lrr": 1}}}, r"^optim_wrapper\.optimizer\.lrr: unknown argument of SGD, .* Did you mean 'lr'"),
        ({"optim_wrapper": {"optimizer": {"type": "SDG"}}}, r"^optim_wrapper\.optimizer\.type: No optimizer named 'SDG'.*'SGD'"),
        ({"optim_wrapper": {"optimizer": {"type": "SGD", "lr": -1}}}, r"^optim_wrapper\.optimizer: SGD refused .*learning rate"),
        ({"optim_wrapper": {**_ONE, "clip_grad": {"max_nrom": 1}}}, r"^optim_wrapper.*clip_grad.*max_nrom"),
        ({"optim_wrapper": {**_ONE, "accumulative_counts": 0}}, r"^optim_wrapper\.accumulative_counts"),
        ({"optim_wrapper": {**_ONE, "paramwise_cfg": {"bias_lr_mul": 2}}}, r"^optim_wrapper\.paramwise_cfg\.bias_lr_mul.*bias_lr_mult"),
        ({"optim_wrapper": {**_ONE, "constructor": "DefaultConstructor"}}, r"^optim_wrapper\.constructor\.type: No optim wrapper constructor"),
        ({"optim_wrapper": {"constructor": "MultiOptimWrapperConstructor", "a": _ONE, "b": {"optim": _SGD}}}, r"^optim_wrapper\.b\.optimizer: this key is missing"),
        ({"param_scheduler": [{"type": "LinearLR"}, {"type": "StepLR", "step_siez": 2}]}, r"^param_scheduler\[1\]\.step_siez: .*'step_size'"),
        ({"param_scheduler": {"a": [{"type": "StepLR"}]}}, r"^param_scheduler\.a\[0\]\.step_size: StepLR needs"),
        ({"param_scheduler": "StepLR"}, r"^param_scheduler: a dict with the key 'type' is needed"),
        ({"train_dataloader": loader_with(sampler={"type": "DefaultSampler", "shufle": True})}, r"^train_dataloader\.sampler\.shufle: unknown argument"),
        ({"train_dataloader": loader_with(sampler="random")}, r"^train_dataloader\.sampler: a sampler or a dict"),
        ({"train_dataloader": loader_with(batch_sampler={"type": "BatchSampler"})}, r"^train_dataloader\.batch_sampler\.type: No data sampler named"),
        ({"train_dataloader": loader_with(collate_fn="pseudo_colate")}, r"^train_dataloader\.collate_fn\.type: No function named .*pseudo_collate"),
        ({"train_dataloader": loader_with(collate_fn=3)}, r"^train_dataloader\.collate_fn: a name .*got 3"),
        ({"val_dataloader": loader_with(num_workers="2")}, r"^val_dataloader\.num_workers: an integer is needed, got '2'"),
        ({"val_dataloader": loader_with(batch_size=0)}, r"^val_dataloader\.batch_size: an integer >= 1"),
        ({"val_dataloader": loader_with(dataset="blobs")}, r"^val_dataloader\.dataset: a dataset or a dict"),
        ({"val_dataloader": loader_with(dataset={"type": "toy:Blobs", "sizes": 3})}, r"^val_dataloader\.dataset\.sizes: unknown argument of Blobs"),
        ({"val_evaluator": [{"type": "Accuracy"}, {"type": "Accuracy", "prefx": "a"}]}, r"^val_evaluator\[1\]\.prefx: unknown argument of Accuracy, .*'prefix'"),
        ({"custom_hooks": [{"type": "LoggerHook"}, {"type": "LoggerHook", "interval": "5"}]}, r"^custom_hooks\[1\]\.interval: an integer"),
        ({"custom_hooks": {"type": "LoggerHook"}}, r"^custom_hooks: a list of hooks"),
        ({"default_hooks": {"loger": {"type": "LoggerHook"}}}, r"^default_hooks\.loger: there is no such .*'logger'"),
        ({"cfg": {"model_wrapper_cfg": {"find_unused_parametres": True}}}, r"^model_wrapper_cfg\.find_unused_parametres: .*find_unused_parameters"),
        ({"cfg": {"find_unused_parameters": "yes"}}, r"^find_unused_parameters: True or False"),
        ({"env_cfg": {"dist_cfg": {"timeout": "long"}}}, r"^env_cfg\.dist_cfg\.timeout: "),
        ({"env_cfg": {"dist_cfg": {"timeout": -1}}}, r"^env_cfg\.dist_cfg\.timeout: timeout=-1 must be more than 0"),
        ({"env_cfg": {"dist_cfg": {"timeout": 5, "steady_timeout": 9}}}, r"^env_cfg\.dist_cfg\.steady_timeout: .* is longer than"),
        ({"env_cfg": {"dist_cfg": {"port": 99999}}}, r"^env_cfg\.dist_cfg\.port: port=99999 is no port"),
        ({"env_cfg": {"dist_cfg": {"backend": "glooo"}}}, r"^env_cfg\.dist_cfg\.backend: .*'gloo'"),
        ({"env_cfg": {"dist_cfg": {"device_type": "cpuu"}}}, r"^env_cfg\.dist_cfg\.device_type: .*'cpu'"),
        ({"env_cfg": {"dist_cfg": {"init_backend": "deepspeed"}}}, r"^env_cfg\.dist_cfg\.init_backend: .* only 'torch'"),
        ({"env_cfg": {"dist_cfg": {"launcher": "slurm"}}}, r"^env_cfg\.dist_cfg\.launcher: unknown argument of init_dist"),
        ({"env_cfg": {"cudnn_bench": True}}, r"^env_cfg\.cudnn_bench: unknown key.*'cudnn_benchmark'"),
        ({"env_cfg": {"mp_cfg": {"mp_start_metod": "fork"}}}, r"^env_cfg\.mp_cfg\.mp_start_metod: unknown key.*'mp_start_method'"),
        ({"env_cfg": {"mp_cfg": {"mp_start_method": "forc"}}}, r"^env_cfg\.mp_cfg\.mp_start_method: 'fork' or 'spawn' or 'forkserver' is needed, got 'forc'"),
        ({"env_cfg": {"mp_cfg": {"opencv_num_threads": "2"}}}, r"^env_cfg\.mp_cfg\.opencv_num_threads: an integer"),
        ({"env_cfg": {"mp_cfg": 3}}, r"^env_cfg\.mp_cfg: a dict is needed, got 3"),
        ({"env_cfg": {"resource_limit": "many"}}, r"^env_cfg\.resource_limit: an integer is needed, got 'many'"),
        ({"env_cfg": {"npu_cfg": {"jit_compile": "maybe"}}}, r"^env_cfg\.npu_cfg\.jit_compile: jit_compile is 'maybe'; it takes"),
        ({"launcher": "slrum"}, r"^launcher: launcher='slrum' is not known.*'slurm'"),
        ({"randomness": {"seed": -1}}, r"^randomness\.seed: an integer from 0"),
        ({"randomness": {"sead": 1}}, r"^randomness\.sead: unknown key.*'seed'"),
        ({"log_level": "INF"}, r"^log_level: an integer or 'DEBUG' or 'INFO' .* is needed, got 'INF'"),
        ({"experiment_name": 3}, r"^experiment_name: text is needed, got 3"),
        ({"resume": 0}, r"^resume: True or False is needed, got 0"),
    ],
    ids=lambda value: value.split(":")[0].replace("\\", "").replace("^", "") if isinstance(value, str) else "",
)  # fmt: skip
def test_a_fault_is_named_by_its_path(tmp_path, overrides, message):
    with pytest.raises((ConfigError, ComponentNotFoundError, ValueError), match=message):
        check(tmp_path, **overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"model": Classifier(), "optim_wrapper": {"optimizer": SGD([torch.ones(1)], lr=0.1)}},
        {"optim_wrapper": {"optimizer": {**_SGD, "maximize": False}, "type": "AmpOptimWrapper"}},
        {"optim_wrapper": {"optimizer": {"type": "NpuFusedAdamW", "lr": 0.1}}},
        {
            "optim_wrapper": {
                "optimizer": {**_SGD, "weight_decay": 0.1},
                "paramwise_cfg": {
                    "norm_decay_mult": 0.0,
                    "custom_keys": {"backbone": {"lr_mult": 0.1}},
                },
            }
        },
        {"optim_wrapper": {"optimizer": {"type": "Muon", "lr": 0.1}}}
        if hasattr(torch.optim, "Muon")
        else {},
        {"optim_wrapper": {"optimizer": {"type": "Adam", "fused": True}}}
        if hasattr(torch, "compile")
        else {},
        {"val_evaluator": Accuracy(), "custom_hooks": [LoggerHook(), {"type": StopAt, "step": 1}]},
        {"default_hooks": {"logger": None, "mine": {"type": "LoggerHook"}, "timer": {}}},
        {"train_dataloader": loader_with(sampler=[0, 1], num_batch_per_epoch=2, collate_fn=None)},
        {"train_cfg": {"by_epoch": False, "max_iters": 3}, "param_scheduler": []},
        {"param_scheduler": {"type": "LinearLR", "by_epoch": False, "begin": 10**6}},
        {"cfg": {"data_root": "x", "compile": {"cache": True}, "tta_model": {}}},
        {
            "load_from": None,
            "resume": True,
            "log_level": 10,
            "visualizer": {"type": "AnyVisualizer"},
        },
        {
            "env_cfg": {
                "dist_cfg": {"backend": "cpu:gloo,cuda:nccl"},
                "npu_cfg": {"jit_compile": "off"},
            }
        }
        if hasattr(torch, "compile")
        else {},
        {"env_cfg": {"dist_cfg": None, "mp_cfg": None, "npu_cfg": None, "resource_limit": None}},
        {"env_cfg": {"dist_cfg": {"backend": "hccl", "device_type": "npu"}}, "launcher": "mpi"},
    ],
    ids=lambda overrides: "-".join(overrides) or "nothing",
)
def test_what_may_work_is_let_through(tmp_path, overrides, recwarn):
    check(tmp_path, **overrides)
    assert not recwarn.list


def test_variables_of_a_configs_own_are_no_slips():
    own = dict.fromkeys(("conv_cfg", "norm_cfg", "train_dataset", "tta_model", "data_root"), 1)
    assert checked_cfg(own, Runner) == own


def test_what_builds_its_own_parts_has_their_path_in_messages(make_runner):
    model = {"type": Net, "width": 4, "neck": {"type": Neck, "name": "a"}}
    with pytest.raises(ConfigError, match=r"^model\.neck\.channels: Neck needs this argument"):
        make_runner(model=model)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            {"by_epoch": True, "gamma": 0.1},
            r"^param_scheduler: the key 'type' is missing; given: 'by_epoch', 'gamma'\. .*CosineRestartLR.* PolyLR, .*torch\.optim",
        ),
        (
            [{"type": "StepLR", "step_size": 2}, {"end": 3}],
            r"^param_scheduler\[1\]: the key 'type' is missing; given: 'end'",
        ),
        ({}, r"^param_scheduler: the key 'type' is missing; given: nothing"),
    ],
)
def test_a_schedule_without_a_type_tells_what_was_given_and_what_there_is(
    tmp_path, schedule, message
):
    with pytest.raises(ConfigError, match=message):
        check(tmp_path, param_scheduler=schedule)


class Completing(Classifier):
    """Says what prepares its data, as classifiers of mmpretrain do."""

    def __init__(self, data_preprocessor=None):
        super().__init__(data_preprocessor={"type": Normalizing, **(data_preprocessor or {})})


class Normalizing(BaseDataPreprocessor):
    def __init__(self, mean=0.0, num_classes=1):
        super().__init__()
        self.settings = (mean, num_classes)


def test_a_model_may_complete_a_data_preprocessor_without_a_type(tmp_path):
    arguments = runner_arguments(
        tmp_path,
        model={"type": Completing},
        data_preprocessor={"mean": 0.5, "num_classes": 3},
    )
    make_plan(arguments)
    runner = Runner.from_cfg(arguments)
    assert runner.model.data_preprocessor.settings == (0.5, 3)
    arguments["model"] = {"type": Classifier}
    with pytest.raises(ConfigError, match=r"data_preprocessor\.mean: unknown argument of BaseData"):
        make_plan(arguments)
