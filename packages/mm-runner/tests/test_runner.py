import gc
import inspect
import io
import json
import random
import re
from datetime import datetime as real_datetime

import pytest
import torch
import yaml
from rich.console import Console
from torch.utils.data import BatchSampler, DataLoader
from toy import (
    NO_VALIDATION,
    Blobs,
    Classifier,
    Killed,
    StopBeforeEpoch,
    loader_cfg,
    needs_compile,
)
from typing_extensions import override

from mm_amp import OptimWrapper
from mm_runner import CheckpointError, ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file, save_checkpoint_file
from mm_runner.evaluator import Accuracy, Evaluator
from mm_runner.hooks import Hook
from mm_runner.reporting import LogProcessor

MMENGINE_ARGUMENTS = (
    "model work_dir train_dataloader val_dataloader test_dataloader train_cfg val_cfg test_cfg "
    "auto_scale_lr optim_wrapper param_scheduler val_evaluator test_evaluator default_hooks "
    "custom_hooks data_preprocessor load_from resume launcher env_cfg log_processor log_level "
    "visualizer default_scope randomness experiment_name cfg"
)
FAST = {"optimizer": {"type": "SGD", "lr": 0.5}}


def log_of(runner):
    return (runner.log_dir / f"{runner.timestamp}.log").read_text()


def scalars_of(runner):
    lines = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_arguments_are_mmengines_in_its_order():
    parameters = inspect.signature(Runner).parameters
    assert " ".join(parameters) == f"{MMENGINE_ARGUMENTS} overwrite"
    required = [name for name, p in parameters.items() if p.default is p.empty]
    assert required == ["model", "work_dir"]
    assert parameters["launcher"].default == "auto"


def test_a_run_learns_and_returns_its_model(make_runner):
    runner = make_runner(train_cfg={"by_epoch": True, "max_epochs": 20}, optim_wrapper=FAST)
    before = runner.val()["accuracy"]
    assert runner.train() is runner.model
    assert runner.val()["accuracy"] > max(before, 0.8)


def test_val_and_test_return_metrics_without_training(make_runner):
    phases = ("train_dataloader", "train_cfg", "optim_wrapper")
    runner = make_runner(
        **dict.fromkeys(phases),
        test_dataloader=loader_cfg(6),
        test_cfg={},
        test_evaluator=[{"type": "Accuracy", "prefix": "test"}],
    )
    assert set(runner.val()) == {"accuracy"}
    assert set(runner.test()) == {"test/accuracy"}
    assert (runner.epoch, runner.iter, runner.max_epochs, runner.max_iters) == (0, 0, 0, 0)
    modes = [(record["mode"], record["epoch"], record["step"]) for record in scalars_of(runner)]
    assert modes == [("val", 0, 0), ("test", 0, 0)]


def test_properties_describe_the_run(make_runner, tmp_path):
    runner = make_runner(experiment_name="toy", randomness={"seed": 7, "deterministic": False})
    assert runner.work_dir == tmp_path / "run"
    assert runner.log_dir == runner.work_dir / runner.timestamp
    assert re.fullmatch(r"\d{8}_\d{6}", runner.timestamp)
    assert runner.experiment_name == f"toy_{runner.timestamp}"
    assert (runner.launcher, runner.distributed, runner.rank, runner.world_size) == (
        "none",
        False,
        0,
        1,
    )
    assert runner.model_name == "Classifier"
    assert runner.device == torch.device("cpu")
    assert (runner.seed, runner.deterministic) == (7, False)
    assert len(runner.hooks) == 7
    runner.train()
    assert isinstance(runner.train_dataloader, DataLoader)
    assert len(runner.val_dataloader.dataset) == 9


def test_what_a_script_asks_of_a_runner_by_mmengines_names(make_runner):
    cfg = {"compile": False, "own": {"key": 1}}
    loop = {"by_epoch": False, "max_iters": 2, "val_begin": 2, "val_interval": 3}
    runner = make_runner(cfg=cfg, train_cfg=loop)
    assert runner.cfg.own.key == runner.cfg["own"].get("key") == 1
    assert (runner.val_begin, runner.val_interval) == (1, 1)
    assert runner.test_loop is None
    for name in ("test_dataloader", "test_evaluator"):
        assert not hasattr(runner, name)
    with pytest.raises(AttributeError, match=r"no test loop, as it got no test_dataloader, .*"):
        _ = runner.test_evaluator
    runner.train()
    assert (runner.val_begin, runner.val_interval) == (2, 3)
    assert type(runner.val_evaluator) is Evaluator
    loader = Runner.build_dataloader(loader_cfg(), seed=3)
    assert next(iter(loader))["labels"].tolist() == [0, 1, 2, 0]
    assert type(Runner.build_evaluator({"type": "Accuracy"})) is Evaluator


def test_an_evaluation_can_be_changed_before_it_runs(make_runner):
    test = {"test_dataloader": loader_cfg(size=7), "test_cfg": {}, "test_evaluator": Accuracy()}
    runner = make_runner(**test)
    for phase, evaluate, size in (("val", runner.val, 9), ("test", runner.test, 7)):
        evaluator = getattr(runner, f"{phase}_evaluator")
        loader = getattr(runner, f"{phase}_dataloader")
        assert len(loader.dataset) == size
        evaluator.metrics.append(Accuracy(prefix="more"))
        measured = evaluate()
        assert set(measured) == {"accuracy", "more/accuracy"}
        assert evaluator is getattr(runner, f"{phase}_evaluator")
        assert loader is getattr(runner, f"{phase}_loop").dataloader


class DrawnBlobs(Blobs):
    """Draws of all generators as it is made."""

    def __init__(self):
        super().__init__(9)
        self.inputs = self.inputs + torch.rand(4) + random.gauss(0, 1)


@pytest.mark.parametrize("dataset", [{"type": Blobs, "size": 9}, {"type": DrawnBlobs}])
def test_asking_for_the_evaluations_first_leaves_the_training_as_it_is(make_runner, dataset):
    loader = {"dataset": dataset, "batch_size": 4, "collate_fn": "default_collate"}
    options = {
        "model": {"type": Classifier, "dropout": 0.5},
        "val_dataloader": loader,
        "test_dataloader": {**loader, "sampler": {"type": "DefaultSampler", "shuffle": True}},
        "test_cfg": {},
        "test_evaluator": {"type": "Accuracy"},
    }

    def train(names):
        runner = make_runner(**options)
        asked = [getattr(runner, name) for name in names]
        model = runner.train()
        assert asked == [getattr(runner, name) for name in names]
        loaders = torch.rand(1, generator=runner.loader_generator)
        drawn = torch.rand(1), loaders, random.gauss(0, 1)
        return {**model.state_dict(), "drawn": torch.tensor(drawn, dtype=torch.float64)}

    plain = train([])
    touched = train(["val_evaluator", "test_evaluator", "val_dataloader", "test_dataloader"])
    for name, value in plain.items():
        assert torch.equal(value, touched[name]), name


def test_weights_can_be_loaded_at_any_time(make_runner, tmp_path):
    state = Classifier().state_dict()
    prefixed = {f"backbone.{name}": value for name, value in state.items()}
    save_checkpoint_file({"state_dict": prefixed, "meta": {"epoch": 3}}, tmp_path / "w.pth")
    torch.save({f"module.{name}": value for name, value in state.items()}, tmp_path / "bare.pth")
    runner = make_runner()
    checkpoint = runner.load_checkpoint(tmp_path / "w.pth", revise_keys=[(r"^backbone\.", "")])
    assert checkpoint["meta"] == {"epoch": 3}
    assert set(checkpoint["state_dict"]) == set(state)
    assert torch.equal(runner.model.layers[0].weight, state["layers.0.weight"])
    runner.train()
    runner.load_checkpoint(str(tmp_path / "bare.pth"), strict=True)
    assert torch.equal(runner.model.layers[0].weight, state["layers.0.weight"])
    with pytest.raises(CheckpointError, match=r"Nothing in the checkpoint fits Classifier"):
        runner.load_checkpoint(tmp_path / "w.pth")


def test_from_cfg_is_the_constructor(tmp_path):
    cfg = {
        "model": {"type": f"{Classifier.__module__}:Classifier"},
        "work_dir": str(tmp_path),
        "train_dataloader": loader_cfg(),
        "train_cfg": {"max_epochs": 1},
        "optim_wrapper": {"optimizer": {"type": "SGD", "lr": 0.1}},
        "compile": False,
        "data_root": "kept for the user",
        "custom_imports": None,
    }
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert runner.cfg == cfg
    assert yaml.safe_load(runner.logs.config_text)["data_root"] == "kept for the user"


def test_the_resolved_config_is_kept_beside_the_logs(make_runner):
    class Items(Blobs):
        """As many datasets do, calls its list ``items``."""

        items = (1, 2, 3)

    runner = make_runner(
        train_dataloader=loader_cfg(dataset=Items(6)), cfg={"find_unused_parameters": True}
    )
    config = yaml.safe_load((runner.log_dir / "config.yaml").read_text())
    assert config["optim_wrapper"] == {"optimizer": {"type": "SGD", "lr": 0.1}}
    assert config["model"]["type"] == "toy:Classifier"
    assert "Items" in config["train_dataloader"]["dataset"]
    assert config["find_unused_parameters"] is True
    assert config["launcher"] == "auto"
    assert "custom_hooks" not in config


def test_numbers_of_other_libraries_may_stand_in_a_config(make_runner):
    numpy = pytest.importorskip("numpy")
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": numpy.float64(0.5)}},
    )
    runner.train()
    config = yaml.safe_load(runner.logs.config_text)
    assert config["optim_wrapper"]["optimizer"]["lr"] == 0.5
    load_checkpoint_file(runner.work_dir / "epoch_1.pth")


def test_log_lines_and_scalars_tell_the_same(make_runner):
    runner = make_runner(
        default_hooks={"logger": {"interval": 4}},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}, "clip_grad": {"max_norm": 9.0}},
        log_processor={"window_size": 4},
    )
    runner.train()
    records = scalars_of(runner)
    assert [(r["mode"], r["epoch"], r["step"]) for r in records] == [
        ("train", 1, 4),
        ("val", 1, 6),
        ("train", 2, 10),
        ("val", 2, 12),
    ]
    assert set(records[0]) == {
        "mode", "epoch", "step", "lr", "loss", "grad_norm", "time", "data_time",
    }  # fmt: skip
    assert set(records[1]) == {"mode", "epoch", "step", "accuracy", "time", "data_time"}
    lines = [line for line in log_of(runner).splitlines() if " Epoch(" in line]
    number = r"\d+\.\d{4}"
    assert re.fullmatch(
        rf"\d\d/\d\d \d\d:\d\d:\d\d INFO Epoch\(train\)  \[1\]\[4/6\]  lr: 1\.0000e-01  "
        rf"eta: 0:00:\d\d  time: {number}  data_time: {number}  "
        rf"loss: {records[0]['loss']:.4f}  grad_norm: {number}",
        lines[0],
    )
    assert re.search(
        rf"INFO Epoch\(val\)  \[1\]\[3/3\]  time: {number}  data_time: {number}  "
        rf"accuracy: {records[1]['accuracy']:.4f}$",
        lines[1],
    )
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"interval": 4}, [4]),
        ({"interval": 4, "ignore_last": False}, [4, 6]),
        ({"interval": 100}, [6]),
    ],
    ids=["ignored", "last", "short-epoch"],
)
def test_steps_that_are_logged(make_runner, options, steps):
    runner = make_runner(
        train_cfg={"max_epochs": 1}, default_hooks={"logger": options}, **NO_VALIDATION
    )
    runner.train()
    assert [record["step"] for record in scalars_of(runner)] == steps


def test_the_logged_loss_is_the_mean_of_the_window(make_runner):
    losses = []

    class Keep(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            losses.append(outputs["loss"])

    runner = make_runner(
        train_cfg={"max_epochs": 1},
        custom_hooks=[Keep()],
        default_hooks={"logger": {"interval": 6}},
        log_processor=LogProcessor(window_size=2),
        **NO_VALIDATION,
    )
    runner.train()
    mean = (losses[-1].item() + losses[-2].item()) / 2
    assert scalars_of(runner)[0]["loss"] == pytest.approx(mean, rel=1e-6)


def test_a_learning_rate_that_is_a_tensor_is_logged(make_runner):
    optimizer = {"type": "AdamW", "lr": torch.tensor(0.25)}
    runner = make_runner(
        train_cfg={"max_epochs": 1}, optim_wrapper={"optimizer": optimizer}, **NO_VALIDATION
    )
    runner.train()
    assert scalars_of(runner)[0]["lr"] == 0.25
    assert "lr: 2.5000e-01" in log_of(runner)


class Clock(real_datetime):
    """A clock that stands still."""

    @classmethod
    @override
    def now(cls, tz=None):
        return cls(2030, 1, 2, 3, 4, 5)


@pytest.mark.parametrize("same_dir", [True, False], ids=["one-work-dir", "two-work-dirs"])
def test_two_runs_of_one_second_share_neither_directory_nor_log(
    make_runner, tmp_path, monkeypatch, same_dir
):
    monkeypatch.setattr("mm_runner.runner._work_dir.datetime", Clock)
    dirs = ["a", "a"] if same_dir else ["a", "b"]
    runners = [make_runner(work_dir=tmp_path / name) for name in dirs]
    first, second = runners
    assert first.timestamp == "20300102_030405"
    assert first.log_dir != second.log_dir
    for name, runner in zip("xy", runners, strict=True):
        runner.logger.info(f"line of {name}")
    assert "line of x" in log_of(first)
    assert "line of y" not in log_of(first)
    assert "line of y" in log_of(second)
    assert "line of x" not in log_of(second)


def test_the_seed_makes_a_run_reproducible(make_runner):
    losses = []
    for seed in (3, 3, 4):
        runner = make_runner(randomness={"seed": seed}, model={"type": Classifier, "dropout": 0.5})
        runner.train()
        losses.append([r["loss"] for r in scalars_of(runner) if r["mode"] == "train"])
    assert losses[0] == losses[1] != losses[2]


def test_without_a_seed_each_run_draws_its_own(make_runner):
    torch.manual_seed(0)
    first = make_runner(randomness=None)
    torch.manual_seed(0)
    assert make_runner(randomness=None).seed != first.seed


def test_deterministic_switches_torch_and_says_what_it_overrides(make_runner):
    cudnn = torch.backends.cudnn
    before = (cudnn.deterministic, cudnn.benchmark)
    try:
        runner = make_runner(
            randomness={"seed": 0, "deterministic": True}, env_cfg={"cudnn_benchmark": True}
        )
        assert torch.are_deterministic_algorithms_enabled()
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)
        assert runner.deterministic
        assert "cudnn_benchmark is off" in log_of(runner)
    finally:
        torch.use_deterministic_algorithms(mode=False)
        cudnn.deterministic, cudnn.benchmark = before


def test_env_cfg_sets_what_it_names(make_runner):
    before = torch.multiprocessing.get_start_method(allow_none=True)
    try:
        make_runner(env_cfg={"mp_cfg": {"mp_start_method": "spawn", "opencv_num_threads": 0}})
        assert torch.multiprocessing.get_start_method() == "spawn"
        make_runner(env_cfg={"resource_limit": 100, "dist_cfg": {"backend": "gloo"}})
        make_runner(env_cfg={"npu_cfg": {"jit_compile": "False"}})  # nothing to switch here
        with pytest.raises(ValueError, match="jit_compile is 'maybe'; it takes 1, true"):
            make_runner(env_cfg={"npu_cfg": {"jit_compile": "maybe"}})
    finally:
        torch.multiprocessing.set_start_method(before, force=True)


@pytest.mark.parametrize(
    ("optim_wrapper", "loader", "factor"),
    [
        ({}, {}, 4 / 8),
        ({"accumulative_counts": 3}, {}, 12 / 8),
        ({}, {"batch_size": 2}, 2 / 8),
        ({}, {"batch_sampler": {"type": BatchSampler, "drop_last": True}}, 4 / 8),
    ],
    ids=["plain", "accumulating", "small", "batch-sampler"],
)
def test_auto_scale_lr_counts_the_batch_of_the_whole_step(
    make_runner, optim_wrapper, loader, factor
):
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        train_dataloader={**loader_cfg(), **loader},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.1}, **optim_wrapper},
        auto_scale_lr={"base_batch_size": 8, "enable": True},
    )
    runner.train()
    assert runner.optim_wrapper.param_groups[0]["lr"] == 0.1 * factor


def test_auto_scale_lr_needs_a_batch_of_known_size(make_runner):
    loader = {"dataset": Blobs(), "batch_sampler": [[0, 1], [2, 3, 4]]}
    scaled = {"base_batch_size": 8, "enable": True}
    runner = make_runner(
        train_dataloader={**loader, "collate_fn": "default_collate"}, auto_scale_lr=scaled
    )
    with pytest.raises(
        ConfigError, match=r"auto_scale_lr: how many samples a batch has is not kno"
    ):
        runner.train()


def test_load_from_takes_the_weights_only(make_runner, tmp_path):
    first = make_runner(param_scheduler={"type": "StepLR", "step_size": 1})
    first.train()
    second = make_runner(
        load_from=str(first.work_dir / "epoch_2.pth"),
        work_dir=tmp_path / "second",
        custom_hooks=[StopBeforeEpoch(0)],
        param_scheduler={"type": "StepLR", "step_size": 1},
    )
    with pytest.raises(Killed):
        second.train()
    for name, value in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], value)
    assert (second.epoch, second.iter) == (0, 0)
    assert second.optim_wrapper.param_groups[0]["lr"] == 0.1


def test_load_from_takes_what_fits_and_tells_the_rest(make_runner, tmp_path):
    state = {**Classifier().state_dict(), "head.weight": torch.ones(1)}
    del state["layers.3.bias"]
    save_checkpoint_file({"state_dict": state}, tmp_path / "w.pth")
    runner = make_runner(load_from=str(tmp_path / "w.pth"))
    runner.val()
    assert torch.equal(runner.model.layers[0].weight, state["layers.0.weight"])
    log = log_of(runner)
    assert "load_from: 3 of the 4 entries of the model are loaded; the others keep their" in log
    assert "missing: layers.3.bias" in log
    assert "unexpected: head.weight" in log


def test_a_ready_wrapper_loader_and_model_are_used_as_they_are(make_runner):
    model = Classifier()
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = DataLoader(Blobs(8), batch_size=4)
    runner = make_runner(model=model, optim_wrapper=wrapper, train_dataloader=loader)
    assert runner.train() is model
    assert runner.optim_wrapper is wrapper
    assert runner.train_dataloader is loader


def test_a_models_init_weights_are_called_before_training_only(make_runner):
    class Initialized(Classifier):
        def init_weights(self):
            self.layers[0].bias.data.fill_(7.0)

    runner = make_runner(model=Initialized())
    assert torch.equal(runner.model.layers[0].bias.data, torch.full((8,), 7.0))
    evaluating = make_runner(
        model=Initialized(), train_dataloader=None, train_cfg=None, optim_wrapper=None
    )
    assert not torch.equal(evaluating.model.layers[0].bias.data, torch.full((8,), 7.0))


def test_a_data_preprocessor_goes_to_a_model_config(make_runner):
    runner = make_runner(data_preprocessor={"type": "BaseDataPreprocessor", "non_blocking": False})
    assert runner.model.data_preprocessor._non_blocking is False


@needs_compile
def test_a_compiled_run_trains_and_saves_clean_names(make_runner):
    torch._dynamo.reset()
    runner = make_runner(cfg={"compile": {"backend": "eager"}}, train_cfg={"max_epochs": 1})
    runner.train()
    assert runner.compile_handle.report().graphs >= 1
    names = load_checkpoint_file(runner.work_dir / "epoch_1.pth")["state_dict"]
    assert set(names) == set(Classifier().state_dict())


def test_a_closed_run_leaves_no_file_open(make_runner):
    runner = make_runner()
    handlers = list(runner.logger.handlers)
    del runner
    gc.collect()
    assert all(getattr(handler, "stream", None) is None for handler in handlers)


def test_a_terminal_gets_a_bar_while_training(make_runner):
    file = io.StringIO()
    runner = make_runner()
    runner.console._console = Console(file=file, force_terminal=True, width=120)
    runner.train()
    assert "12/12" in file.getvalue()
    assert "epoch 2/2" in file.getvalue()
    assert runner.console._progress is None
