"""What hooks and scripts give the writers of a run, and what they read of its scalars."""

import json
from importlib.util import find_spec

import pytest
import torch
import yaml
from toy import Scripted
from typing_extensions import override

from mm_runner import ConfigError
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.hooks import Hook
from mm_runner.reporting._writers import named_scalars
from mm_runner.tools import read_scalars


class Gallery:
    """A writer that can do all there is."""

    def __init__(self):
        self.calls = []

    def write(self, record):
        self.calls.append(("write", record))

    def add_image(self, name, image, step):
        self.calls.append(("image", name, tuple(image.shape), float(image.sum()), step))

    def add_config(self, config):
        self.calls.append(("config", dict(config)))


def records_of(runner):
    lines = (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_scalars_go_to_every_writer_under_their_names(make_runner):
    gallery = Gallery()
    runner = make_runner(cfg={"log_writers": [gallery]})
    runner.visualizer.add_scalar("val/margin", torch.tensor(0.25), step=3)
    runner.visualizer.add_scalars({"own": 1, "train/gap": 2.0, "group/own": 4.0}, step=5)
    runner.visualizer.add_scalars({"step": 7, "last": torch.tensor([8.0])})
    expected = [
        {"mode": "val", "epoch": 0, "step": 3, "margin": 0.25},
        {"mode": "other", "epoch": 0, "step": 5, "own": 1, "group/own": 4.0},
        {"mode": "train", "epoch": 1, "step": 5, "gap": 2.0},
        {"mode": "other", "epoch": 0, "step": 7, "last": 8.0},
    ]
    assert records_of(runner) == expected
    assert [record for _, record in gallery.calls] == expected
    names = [list(named_scalars(record)) for record in expected]
    assert names == [["val/margin"], ["own", "group/own"], ["train/gap"], ["last"]]
    assert read_scalars(runner.work_dir) == expected


def test_calls_as_mmengine_has_them_are_taken(make_runner):
    runner = make_runner()
    runner.visualizer.add_scalar("a", 0.5)
    runner.visualizer.add_scalar("b", 0.5, 2.0)
    runner.visualizer.add_scalars({"c": 1.0}, 3, "scalars.json")
    # The tags that LoggerHook gives.
    tag = {"loss": 2.0, "val/x": 1, "epoch": 4, "iter": 8, "step": torch.tensor(9)}
    runner.visualizer.add_scalars(tag, step=1, file_path=None)
    assert records_of(runner) == [
        {"mode": "other", "epoch": 0, "step": 0, "a": 0.5},
        {"mode": "other", "epoch": 0, "step": 2, "b": 0.5},
        {"mode": "other", "epoch": 0, "step": 3, "c": 1.0},
        {"mode": "other", "epoch": 4, "step": 9, "loss": 2.0, "iter": 8},
        {"mode": "val", "epoch": 4, "step": 9, "x": 1},
    ]


def test_numbers_of_numpy_are_written(make_runner):
    numpy = pytest.importorskip("numpy")
    runner = make_runner()
    runner.visualizer.add_scalars({"a": numpy.float32(0.5), "b": numpy.array([3])})
    (record,) = records_of(runner)
    assert (record["a"], record["b"]) == (0.5, 3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", "high", r"'loss' needs a number, or a tensor of one element, got 'high'"),
        ("loss", torch.zeros(2), r"'loss' needs a number"),
        ("loss", None, r"'loss' needs a number"),
    ],
)
def test_what_is_no_scalar_is_refused(make_runner, name, value, message):
    with pytest.raises(ConfigError, match=rf"^visualizer\.add_scalars: {message}"):
        make_runner().visualizer.add_scalar(name, value)


def test_images_go_to_the_writers_that_keep_them(make_runner):
    gallery = Gallery()
    runner = make_runner(cfg={"log_writers": [gallery]})
    image = torch.ones(4, 5, 3)
    runner.visualizer.add_image("sample", image, step=2)
    image.zero_()
    runner.visualizer.add_image("grey", torch.ones(2, 2))
    assert gallery.calls == [
        ("image", "sample", (4, 5, 3), 60.0, 2),
        ("image", "grey", (2, 2), 4, 0),
    ]


def test_keys_of_a_configuration_are_added(make_runner):
    gallery = Gallery()
    runner = make_runner(cfg={"log_writers": [gallery], "own": {"key": 1}})
    path = runner.log_dir / "config.yaml"
    before = path.read_text()
    runner.dump_config()
    assert path.read_text() == before == runner.logs.config_text
    runner.cfg.own.key = 2
    runner.dump_config()
    assert yaml.safe_load(path.read_text())["own"] == {"key": 2}
    runner.visualizer.add_config({"note": "third", "kind": Gallery})
    config = yaml.safe_load(path.read_text())
    assert (config["note"], config["own"], config["launcher"]) == ("third", {"key": 2}, "auto")
    assert gallery.calls == [("config", {"note": "third", "kind": f"{__name__}:Gallery"})]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs the extra tensorboard")
@pytest.mark.filterwarnings("ignore")  # of tensorboard's own dependencies
def test_tensorboard_shows_what_a_script_gave(make_runner):
    from tensorboard.backend.event_processing.event_accumulator import (  # noqa: PLC0415
        EventAccumulator,
    )

    runner = make_runner(cfg={"log_writers": ["TensorBoardWriter"]})
    runner.visualizer.add_scalar("own/margin", 0.25, step=3)
    runner.visualizer.add_image("colour", torch.rand(4, 5, 3), step=2)
    runner.visualizer.add_image("grey", torch.rand(4, 5), step=2)
    runner.visualizer.add_config({"note": "third"})
    events = EventAccumulator(str(runner.log_dir)).Reload()
    assert events.Tags()["scalars"] == ["own/margin"]
    assert [event.step for event in events.Scalars("own/margin")] == [3]
    assert sorted(events.Tags()["images"]) == ["colour", "grey"]
    assert (events.Images("grey")[0].width, events.Images("grey")[0].height) == (5, 4)
    texts = [str(event.tensor_proto) for event in events.Tensors("config/text_summary")]
    assert "note: third" in texts[-1]


# The message hub, as MMEngine's hooks read it.


def test_a_hook_reads_losses_rates_and_metrics(make_runner):
    seen = []

    class Reads(Hook):
        @override
        def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
            loss = runner.message_hub.get_scalar("train/loss")
            assert loss.current() == outputs["loss"].item()
            assert loss.min(2) <= loss.mean(2) <= loss.max(2)
            seen.append(runner.message_hub.get_scalar("train/lr").current())

        @override
        def after_val_epoch(self, runner, metrics=None):
            accuracy = runner.message_hub.get_scalar("val/accuracy")
            seen.append(("val", accuracy.current(), accuracy.mean(), accuracy.max()))

    runner = make_runner(
        custom_hooks=[Reads()],
        param_scheduler={"type": "StepLR", "step_size": 1, "gamma": 0.5},
        val_evaluator=Scripted(values=[0.25, 0.75]),
        test_dataloader=None,
    )
    runner.train()
    assert seen[:7] == [0.1] * 6 + [("val", 0.25, 0.25, 0.25)]
    assert seen[7:] == [0.05] * 6 + [("val", 0.75, 0.5, 0.75)]
    hub = runner.message_hub
    assert hub.get_scalar("train/lr").mean(10) == 0.05
    assert "lr" not in hub.means("train")
    assert hub.means("val") == {}
    with pytest.raises(ConfigError, match=r"'val/acc' was asked for; there are .*'val/accuracy'"):
        hub.get_scalar("val/acc")
    with pytest.raises(ConfigError, match=r"'train/lrs' was asked for; .*mean.*'train/lr'"):
        hub.get_scalar("train/lrs")


def test_the_message_hub_knows_the_facts_of_a_run(make_runner):
    stages = []

    class Reads(Hook):
        def after_train_iter(self, runner, **_):
            stages.append(runner.message_hub.get_info("loop_stage"))

        def after_val_epoch(self, runner, **_):
            stages.append(runner.message_hub.get_info("loop_stage"))

    checkpoint = {"type": "CheckpointHook", "save_best": "accuracy"}
    runner = make_runner(
        custom_hooks=[Reads()],
        train_cfg={"max_epochs": 1},
        val_evaluator=Scripted(values=[0.25]),
        default_hooks={"checkpoint": checkpoint},
    )
    runner.train_dataloader.dataset.metainfo = {"classes": ("cat", "dog")}
    runner.train()
    assert {*stages[:-1]} == {"train"}
    assert stages[-1] == "val"
    facts = runner.message_hub.get_info
    assert facts("experiment_name") == runner.experiment_name
    assert (facts("seed"), facts("best_score")) == (runner.seed, 0.25)
    assert facts("last_ckpt") == str(runner.work_dir / "epoch_1.pth")
    assert facts("best_ckpt") == str(runner.work_dir / "best_accuracy.pth")
    saved = load_checkpoint_file(facts("last_ckpt"))["meta"]["dataset_meta"]
    assert saved == {"classes": ["cat", "dog"]}


def test_metrics_of_validations_before_are_in_a_checkpoint(make_runner):
    options = {"train_cfg": {"max_epochs": 3}}
    runner = make_runner(**options, val_evaluator=Scripted(values=[0.25, 0.75, 0.5]))
    runner.train()
    resumed = make_runner(
        **options,
        load_from=str(runner.work_dir / "epoch_2.pth"),
        resume=True,
        val_evaluator=Scripted(values=[0.75, 0.5]),
    )
    seen = []

    class Reads(Hook):
        def before_train(self, runner):
            seen.append(runner.message_hub.get_scalar("val/accuracy").current())

    resumed.register_hook(Reads())
    resumed.train()
    assert seen == [0.25]
    assert resumed.message_hub.get_scalar("val/accuracy").current() == 0.5
