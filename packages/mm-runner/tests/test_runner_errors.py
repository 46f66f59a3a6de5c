import pytest
import torch
from torch import nn
from toy import NO_VALIDATION, Blobs, Classifier, runner_arguments
from typing_extensions import override

import mm_compile
from mm_runner import CheckpointError, ComponentNotFoundError, ConfigError, Runner, WorkDirError
from mm_runner.checkpoint import save_checkpoint_file
from mm_runner.registry import DATASETS, MODELS
from mm_runner.tools import make_plan

SGD = {"type": "SGD", "lr": 0.1}


@pytest.fixture(autouse=True)
def known_names(monkeypatch):
    monkeypatch.setitem(DATASETS._registered, "Blobs", Blobs)
    monkeypatch.setitem(MODELS._registered, "Classifier", Classifier)


def test_an_unknown_model_names_what_there_is_and_what_was_meant(make_runner):
    with pytest.raises(ComponentNotFoundError, match=r"No model named 'Clasifier'.*'Classifier'"):
        make_runner(model={"type": "Clasifier"})


@pytest.mark.usefixtures("group_of_one")
def test_an_unknown_model_wrapper_names_what_there_is(make_runner):
    with pytest.raises(
        ComponentNotFoundError,
        match=r"No model wrapper named 'MMDistributedDataParalel'.*'MMDistributedDataParallel'",
    ):
        make_runner(cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParalel"}})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"train_cfg": None},
            r"train_dataloader and optim_wrapper were given without train_cfg; .*all or none",
        ),
        (
            {"val_evaluator": None, "val_cfg": None},
            r"val_dataloader was given without val_evaluator",
        ),
        ({"test_evaluator": {}}, r"test_evaluator was given without test_dataloader"),
        (
            {
                "train_dataloader": None,
                "train_cfg": None,
                "optim_wrapper": None,
                "param_scheduler": {"type": "StepLR"},
            },
            r"param_scheduler was given without optim_wrapper",
        ),
        ({"cfg": {"complie": True}}, r"cfg\.complie: unknown key\. Did you mean 'compile'"),
        ({"cfg": {"work_dirs": "x"}}, r"cfg\.work_dirs: unknown key\. Did you mean 'work_dir'"),
        ({"cfg": {"sync_bn": "mmcv"}}, r"^sync_bn: 'torch' is needed, got 'mmcv'"),
        (
            {"cfg": {"activation_checkpointing": "[backbone]"}},
            r"^activation_checkpointing: '\[backbone\]' names no module of Classifier",
        ),
        ({"cfg": 3}, r"cfg: a dict is needed, got 3"),
        ({"load_from": "https://a.b/c.pth"}, r"load_from: 'https://a\.b/c\.pth' .* Download it"),
        ({"randomness": 3}, r"randomness: a dict is needed, got 3"),
        (
            {"auto_scale_lr": {"batch_size": 3}},
            r"auto_scale_lr\.batch_size: unknown key.*'base_batch_size'",
        ),
        ({"default_hooks": {"log": None}}, r"default_hooks\.log: there is no such default hook"),
        ({"model": 3}, r"model: an nn\.Module or a dict with 'type' is needed, got 3"),
        ({"model": {"dropout": 0.1}}, r"model: the key 'type' is missing; given: 'dropout'"),
        ({"model": {"type": dict}}, r"model\.type: an nn\.Module is needed, .*dict.* gave \{\}"),
        (
            {"model": {"type": "Classifier", "drop": 0.1}},
            r"model\.drop: unknown argument of Classifier.*'dropout'",
        ),
    ],
)
def test_wrong_arguments_are_named_when_the_runner_is_made(make_runner, overrides, message):
    with pytest.raises(ConfigError, match=message):
        make_runner(**overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"train_dataloader": {"dataset": Blobs()}},
            r"train_dataloader\.batch_size: this key is missing; given: 'dataset'",
        ),
        (
            {"train_dataloader": {"batch_size": 3}},
            r"train_dataloader\.dataset: this key is missing; given: 'batch_size'",
        ),
        (
            {"val_dataloader": {"dataset": Blobs(), "batch_size": None}},
            r"val_dataloader\.batch_size: this key is missing",
        ),
        (
            {"val_dataloader": {"batch_size": 3}},
            r"val_dataloader\.dataset: this key is missing",
        ),
        ({"train_cfg": 3}, r"train_cfg: a dict is needed, got 3"),
        (
            {"train_cfg": {"by_epoch": False, "max_epochs": 3}},
            r"train_cfg\.max_epochs: unknown argument of IterBasedTrainLoop",
        ),
        (
            {"train_cfg": {"by_epoch": True, "type": "EpochBasedTrainLoop", "max_epochs": 1}},
            r"train_cfg: 'type' and 'by_epoch' were both given",
        ),
        ({"val_cfg": {"fp61": True}}, r"val_cfg\.fp61: unknown argument of ValLoop.*'fp16'"),
        (
            {"auto_scale_lr": {"enable": True}},
            r"auto_scale_lr\.base_batch_size: an integer >= 1 is needed, got None",
        ),
        (
            {"model": nn.Linear(1, 1)},
            r"^loss: none was given, and Linear takes none of 'inputs', 'labels'\. Give the",
        ),
    ],
)
def test_wrong_arguments_are_named_when_training_starts(make_runner, overrides, message):
    with pytest.raises(ConfigError, match=message):
        make_runner(**overrides).train()


@pytest.mark.parametrize("phase", ["train", "val", "test"])
def test_a_phase_that_is_not_configured_names_what_it_needs(tmp_path, phase):
    runner = Runner(Classifier(), str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{phase}\(\): .*{phase}_dataloader.*these three"):
        getattr(runner, phase)()


@pytest.mark.parametrize("key", ["model", "work_dir"])
def test_from_cfg_names_a_missing_key(key):
    cfg = {"model": {"type": "Classifier"}, "work_dir": "x"}
    del cfg[key]
    with pytest.raises(ConfigError, match=rf"cfg\.{key}: this key is missing; given: \w+"):
        Runner.from_cfg(cfg)


@pytest.mark.parametrize(
    ("given", "meant", "message"),
    [
        ("trian_cfg", "train_cfg", r"^cfg\.trian_cfg: unknown key\. Did you mean 'train_cfg'"),
        ("modle", "model", r"^cfg\.modle: unknown key\. Did you mean 'model'"),
        ("workdir", "work_dir", r"^cfg\.workdir: unknown key\. Did you mean 'work_dir'"),
        (
            "the_model",
            "model",
            r"^cfg\.model: this key is missing; given: .*the_model",
        ),
        (
            "optimizer",
            "optim_wrapper",
            r"^optimizer: .* sets nothing here; it belongs to optim_wrapper\.optimizer\.",
        ),
    ],
)
@pytest.mark.parametrize("check", [Runner.from_cfg, make_plan], ids=["run", "plan"])
def test_a_misspelt_key_is_named_with_the_one_that_is_meant(tmp_path, check, given, meant, message):
    cfg = runner_arguments(tmp_path / "run")
    cfg[given] = cfg.pop(meant)
    with pytest.raises(ConfigError, match=message):
        check(cfg)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("compile_cfg", [{"tarqet": "forward"}, "yes"], ids=["key", "text"])
def test_a_wrong_compile_option_is_mm_compiles_error(make_runner, compile_cfg):
    with pytest.raises(mm_compile.MMCompileError, match=r"tarqet|yes"):
        make_runner(cfg={"compile": compile_cfg})


def test_a_work_dir_that_cannot_be_written_is_named(make_runner, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WorkDirError, match=r"work_dir='.*file/run' was asked for.*may write to"):
        make_runner(work_dir=str(tmp_path / "file" / "run"))
    with pytest.raises(WorkDirError, match=r"work_dir='.*file' was asked for"):
        make_runner(work_dir=str(tmp_path / "file"))


def test_batches_and_losses_of_the_wrong_kind_say_what_they_may_be(make_runner):
    class Unnamed(Classifier):
        @override
        def forward(self, inputs, labels, mode="tensor"):
            return {"value": super().forward(inputs, labels, "loss")["loss"]}

    with pytest.raises(
        ConfigError, match=r"returned 'value'; at least one name must contain 'loss'"
    ):
        make_runner(model=Unnamed(), **NO_VALIDATION).train()

    tensors = {"dataset": torch.ones(4, 4), "batch_size": 2, "collate_fn": "default_collate"}
    with pytest.raises(TypeError, match=r"The batch must be a dict .*got Tensor"):
        make_runner(train_dataloader=tensors, **NO_VALIDATION).train()


def test_a_checkpoint_that_does_not_fit_is_an_error(make_runner, tmp_path):
    runner = make_runner()
    runner.train()

    class Larger(Classifier):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(3, 3)

    with pytest.raises(
        CheckpointError,
        match=r"does not fit Larger: missing: head\.weight.*load_from takes what fits",
    ):
        make_runner(model=Larger(), resume=True).train()

    save_checkpoint_file({"state_dict": {"other": torch.ones(1)}}, tmp_path / "other.pth")
    with pytest.raises(
        CheckpointError, match=r"Nothing in the checkpoint fits Classifier: missing: layers"
    ):
        make_runner(load_from=str(tmp_path / "other.pth")).val()
    with pytest.raises(CheckpointError, match=r"gone\.pth was asked for; there is no such file"):
        make_runner(load_from=str(tmp_path / "gone.pth")).val()


class WithBytes(Classifier):
    """Keeps what no checkpoint may hold, as a module of another library may."""

    def get_extra_state(self):
        return b"scales"

    def set_extra_state(self, state):
        self.state = state


def test_a_model_that_cannot_be_saved_is_refused_when_it_is_saved(make_runner):
    with pytest.raises(CheckpointError, match=r"state_dict\._extra_state: builtins\.bytes cannot"):
        make_runner(model=WithBytes()).train()
    make_runner(model=WithBytes(), default_hooks={"checkpoint": None}).train()
