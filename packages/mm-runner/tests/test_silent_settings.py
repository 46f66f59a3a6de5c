"""Settings that would do nothing are refused, in one message that names the path."""
# ruff: noqa: E501 - a table reads best with a case in each line

import json

import pytest
import torch
from toy import NO_VALIDATION, Blobs, runner_arguments
from typing_extensions import override

import mm_dist
from mm_runner import ComponentNotFoundError, ConfigError, Runner
from mm_runner.cli import main
from mm_runner.registry import OPTIMIZERS
from mm_runner.reporting import LogProcessor
from mm_runner.tools import make_plan

SGD = {"type": "SGD", "lr": 0.1, "weight_decay": 0.01}


class Shouting(LogProcessor):
    """Lines in capitals, with a mark at their end."""

    def __init__(self, mark="!", **options):
        super().__init__(**options)
        self.mark = mark

    @override
    def line(self, *args, **kwargs):
        return super().line(*args, **kwargs).upper() + self.mark


class GroupRank(torch.optim.SGD):
    """Reads from its groups what is no argument of it, as some low-rank optimizers do."""


def custom_keys(value):
    return {"optim_wrapper": {"optimizer": SGD, "paramwise_cfg": {"custom_keys": value}}}


def sgd(**options):
    return {"optim_wrapper": {"optimizer": {**SGD, **options}}}


def wrapper(**arguments):
    return {"model_wrapper_cfg": {"type": "MMDistributedDataParallel", **arguments}}


NAN = float("nan")
BACKENDS = [{"type": "LocalVisBackend"}]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"visualizer": {"type": "Vizualiser"}}, r"^visualizer\.type: 'Vizualiser' was given"),
        ({"train_cfg": {"by_epoch": True, "max_epochs": -3}}, r"^train_cfg\.max_epochs: an integer >= 1 is needed, got -3"),
        ({"log_processor": {"type": "LogProcesor"}}, r"^log_processor\.type: No log processor named 'LogProcesor'.*Did you mean 'LogProcessor'"),
        ({"log_processor": {"type": {"type": "LogProcessor"}}}, r"^log_processor\.type: a name, a class or a function is needed, got \{'type'"),
        ({"log_processor": {"type": Blobs}}, r"^log_processor: .*Blobs.* derived from mm_runner\.reporting\.LogProcessor"),
        ({"log_processor": {"type": Shouting, "windw_size": 3}}, r"^log_processor: Shouting refused its arguments: .*'windw_size'"),
        ({"runner_type": "FlexibleRunner"}, r"^cfg\.runner_type: 'FlexibleRunner' was given; .*MMFullyShardedDataParallel"),
        ({"strategy": {"type": "DeepSpeedStrategy"}}, r"^cfg\.strategy: .*DeepSpeedStrategy.*MMFullyShardedDataParallel.* Remove the key"),
        (custom_keys({"layers": {"weight_dcay": 0.0}}), r"custom_keys\.layers\.weight_dcay: unknown key; known are lr_mult, decay_mult, lr, .*'weight_decay'"),
        (custom_keys({"value": {"layers": {"lr_mult": 0.1}}}), r"custom_keys\.value\.layers: unknown key; known are"),
        (custom_keys([]), r"^optim_wrapper\.paramwise_cfg\.custom_keys: a dict of dicts .*got \[\]"),
        (wrapper(foo=1), r"^model_wrapper_cfg\.foo: unknown key; known are type, detect_anomalous_params, .*bucket_cap_mb"),
        (wrapper(type="MMFullyShardedDataParallel", foo=1), r"^model_wrapper_cfg\.foo: unknown argument of MMFullyShardedDataParallel"),
        (wrapper(comm_hok="fp16"), r"^model_wrapper_cfg\.comm_hok: .*'comm_hook'"),
        ({"env_cfg": {"mp_cfg": {"opencv_num_threads": True}}}, r"^env_cfg\.mp_cfg\.opencv_num_threads: .*got True"),
        ({"train_cfg": {"by_epoch": False, "val_interval": 3}}, r"^train_cfg\.max_iters: IterBasedTrainLoop needs this argument"),
        (custom_keys({"layers": {"lr_mult": NAN}}), r"custom_keys\.layers\.lr_mult: a finite number"),
        ({"custom_hooks": [{"type": "EMAHook", "momentum": NAN}]}, r"^custom_hooks\[0\]: .*momentum: a number between 0 and 1"),
        ({"param_scheduler": {"type": "MultiStepLR", "milestones": {}}}, r"^param_scheduler: "),
        ({"param_scheduler": {"type": "MultiStepLR", "milestones": [5, 2]}}, r"^param_scheduler: milestones=\[5, 2\] was given; ascending integers are needed"),
        ({"default_hooks": {"checkpoint": {"filename_tmpl": "../e_{}.pth"}}}, r"filename_tmpl: .* in the name of a file, got '\.\./e_\{\}\.pth'\. Give the directory as out_dir"),
        ({"param_scheduler": [{"type": "StepLR", "step_sze": 1}]}, r"^param_scheduler\[0\]\.step_sze: unknown argument"),
        ({"param_scheduler": [{"type": "StepLr", "step_size": 1}]}, r"^param_scheduler\[0\]\.type: No parameter scheduler named 'StepLr'"),
    ],
)  # fmt: skip
def test_a_setting_without_effect_is_refused_by_check_and_by_the_runner(
    tmp_path, overrides, message
):
    arguments = runner_arguments(tmp_path / "run", **overrides)
    with pytest.raises((ConfigError, ComponentNotFoundError), match=message):
        make_plan(arguments)
    with pytest.raises((ConfigError, ComponentNotFoundError), match=message):
        Runner.from_cfg(arguments)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides",
    [
        {"visualizer": {"type": "DetLocalVisualizer", "vis_backends": BACKENDS, "name": "v", "save_dir": "d", "image": None, "bbox_color": (1, 2, 3), "text_color": "red", "line_width": 3, "alpha": 0.8, "backend": "opencv", "fig_save_cfg": {}, "radius": 2}},
        {"optim_wrapper": {"optimizer": {"type": "Rprop", "step_sizes": [1e-6, float("inf")]}}},
        {"param_scheduler": {"type": "MultiStepLR", "milestones": [1, 1, 2]}},
        {"log_processor": {"type": "LogProcessor", "window_size": 20}},
        {"log_processor": {"type": LogProcessor}},
        {"log_processor": {"type": "mm_runner.reporting:LogProcessor"}},
        {"runner_type": "Runner", "strategy": None},
        {"runner_type": Runner},
        custom_keys({"layers": {"lr_mult": 0.1, "decay_mult": 0, "momentum": 0.5, "nesterov": False, "lr": 1}}),
        custom_keys(None),
        wrapper(find_unused_parameters=True, broadcast_buffers=True, bucket_cap_mb=5, comm_hook="fp16"),
        wrapper(type="MMSeparateDistributedDataParallel", detect_anomalous_params=True, bucket_cap_mb=5),
        {"env_cfg": {"mp_cfg": {"mp_start_method": "fork", "opencv_num_threads": 0}}},
        custom_keys({"layers": {"group_name": "first"}}),
        {"env_cfg": {"mp_cfg": None}},
    ],
)  # fmt: skip
def test_settings_that_have_an_effect_or_are_mmengines_own_are_accepted(tmp_path, overrides):
    make_plan(runner_arguments(tmp_path, **overrides), world_size=2)


@pytest.mark.parametrize("kind", [Shouting, f"{__name__}:Shouting", f"{__name__}.Shouting"])
def test_a_log_processor_of_the_users_own_writes_the_lines(make_runner, kind):
    runner = make_runner(
        log_processor={"type": kind, "mark": "?!", "window_size": 3},
        default_hooks={"logger": {"interval": 6}},
        **NO_VALIDATION,
    )
    runner.train()
    assert type(runner.log_processor).__name__ == "Shouting"
    assert runner.log_processor.window_size == 3
    log = next(runner.log_dir.glob("*.log")).read_text()
    lines = [line for line in log.splitlines() if "EPOCH(TRAIN)" in line]
    assert len(lines) == 2
    assert all("LOSS: " in line and line.endswith("?!") for line in lines)


def test_an_optimizer_that_is_not_torchs_may_read_more_from_a_group(tmp_path, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS._registered, "GroupRank", GroupRank)
    arguments = runner_arguments(tmp_path, **custom_keys({"layers.0": {"rank": 4}}))
    arguments["optim_wrapper"]["optimizer"] = {**SGD, "type": "GroupRank"}
    make_plan(arguments)
    arguments["optim_wrapper"]["paramwise_cfg"]["custom_keys"] = {"layers.0": {"momentm": 4}}
    with pytest.raises(ConfigError, match=r"layers\.0\.momentm: .*Did you mean 'momentum'"):
        make_plan(arguments)


class OfTheUsersOwn(mm_dist.MMDistributedDataParallel):
    """Takes what nobody else does."""

    def __init__(self, module, **arguments):
        arguments.pop("shade", None)
        super().__init__(module, **arguments)


def test_a_wrapper_of_the_users_own_may_take_anything(tmp_path):
    make_plan(runner_arguments(tmp_path, **wrapper(type=OfTheUsersOwn, shade=1)), world_size=2)


def test_the_command_refuses_what_only_several_processes_would_tell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cfg = runner_arguments(tmp_path, model={"type": "toy:Classifier"}, **wrapper(foo=1))
    dataset = {"type": "toy:Blobs"}
    for phase in ("train", "val"):
        cfg[f"{phase}_dataloader"] = {**cfg[f"{phase}_dataloader"], "dataset": dataset}
    (tmp_path / "c.json").write_text(json.dumps(cfg))
    assert main(["check", "c.json", "--world-size", "2"]) == 1
    assert "c.json" in (message := capsys.readouterr().err)
    assert "model_wrapper_cfg.foo: unknown key" in message


def test_keys_that_nothing_uses_are_listed(write, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    write(
        "c.py",
        "max_epochs, lr, unused = 12, 0.1, True\n"
        "model = dict(type='toy:Classifier')\n"
        "work_dir = 'w'\n"
        "train_cfg = dict(by_epoch=True, max_epochs=max_epochs)\n"
        "optim_wrapper = dict(optimizer=dict(type='SGD', lr=lr * 2))\n"
        "train_dataloader = dict(\n"
        "    dataset=dict(type='toy:Blobs'), batch_size=4, collate_fn='default_collate'\n"
        ")\n",
    )
    with pytest.warns(UserWarning, match=r"^--cfg-options unused: not an argument"):
        assert main(["check", "c.py", "--cfg-options", "unused=1"]) == 0
    (note,) = [
        line for line in capsys.readouterr().out.splitlines() if "configuration's own" in line
    ]
    assert note.endswith("which nothing here uses: unused.")


YAML = """
batch_size: &size 8
model: {type: "toy:Classifier"}
work_dir: w
train_cfg: {by_epoch: true, max_epochs: 12}
optim_wrapper: {optimizer: {type: SGD, lr: &rate 0.1}}
lr: *rate
train_dataloader: {dataset: {type: "toy:Blobs"}, batch_size: 4, collate_fn: default_collate}
test_dataloader: {dataset: {type: "toy:Blobs"}, batch_size: *size, collate_fn: default_collate}
test_cfg: {}
test_evaluator: {type: Accuracy}
"""


@pytest.mark.parametrize(
    ("key", "value", "home"),
    [
        ("max_epochs", 3, "train_cfg.max_epochs"),
        ("seed", 0, "randomness.seed"),
        ("optimizer", {"type": "Adam"}, "optim_wrapper.optimizer"),
        ("precision", "bf16", "optim_wrapper.dtype"),
        ("gradient_clip_val", 1.0, "optim_wrapper.clip_grad.max_norm"),
    ],
)
def test_an_argument_of_one_level_down_is_refused_at_the_top(
    write, monkeypatch, capsys, tmp_path, key, value, home
):
    monkeypatch.chdir(tmp_path)
    write("base.yaml", YAML)
    lr = ["--cfg-options", "optim_wrapper.optimizer.lr=0.2"]
    assert main(["check", "base.yaml", *lr]) == 0  # an anchor is a variable, whatever is used
    write("c.yaml", "_base_: base.yaml\noptim_wrapper: {optimizer: {lr: 0.3}}\n")
    assert main(["check", "c.yaml"]) == 0
    for name, text in (
        ("s.json", '{"_base_": "base.yaml"}'),
        ("s.py", f"{key} = 1\n_base_ = 'base.yaml'"),
    ):
        write(name, text)
        assert main(["check", name, "--cfg-options", f"{key}={json.dumps(value)}"]) == 1
        message = capsys.readouterr().err
        assert f"--cfg-options {key}: nothing reads this key; it belongs to {home}" in message
    write("c.yaml", f"_base_: base.yaml\n{key}: {json.dumps(value)}\n")
    assert main(["check", "c.yaml"]) == 1
    message = capsys.readouterr().err
    assert f"c.yaml:2: {key}: " in message
    assert f"sets nothing here; it belongs to {home}. Set it there" in message
