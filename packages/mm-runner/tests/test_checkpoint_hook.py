import hashlib
import logging
from types import SimpleNamespace

import pytest
import torch
from toy import NO_VALIDATION, Killed, Scripted, StopBeforeEpoch
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.checkpoint import load_checkpoint_file
from mm_runner.errors import CheckpointWriteError
from mm_runner.hooks import CheckpointHook, Hook
from mm_runner.reporting import MessageHub


@pytest.fixture
def run(make_runner):
    """``run(hook, epochs=5, **overrides)`` trains and returns the Runner."""

    def train(checkpoint, *, epochs=5, **overrides):
        runner = make_runner(
            train_cfg={"max_epochs": epochs},
            default_hooks={"checkpoint": checkpoint},
            **overrides,
        )
        runner.train()
        return runner

    return train


def saved(runner):
    return sorted(path.name for path in runner.work_dir.glob("*.pth"))


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({}, "12345"),
        ({"interval": 2, "save_last": False}, "24"),
        ({"interval": -1}, "5"),
        ({"interval": 2, "save_begin": 1}, "135"),
        ({"interval": 3, "save_begin": 4, "save_last": False}, "4"),
        ({"max_keep_ckpts": 2}, "45"),
    ],
    ids=["default", "not-last", "only-last", "begin", "first", "keep-two"],
)
def test_epochs_that_are_saved(run, options, files):
    runner = run(options)
    assert saved(runner) == [f"epoch_{number}.pth" for number in files]
    newest = f"epoch_{files[-1]}.pth"
    assert (runner.work_dir / "last_checkpoint").read_text() == f"{newest}\n"
    assert load_checkpoint_file(runner.work_dir / newest)["meta"]["epoch"] == int(files[-1])


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({"interval": 4}, [4, 8, 12]),
        ({"interval": 5, "max_keep_ckpts": 2}, [10, 12]),
        ({"interval": 5, "save_last": False, "save_begin": 2}, [2, 7, 12]),
        ({"interval": -1, "filename_tmpl": "iter_{}.pth"}, [12]),
    ],
    ids=["interval", "keep-two", "begin", "only-last"],
)
def test_steps_that_are_saved(run, options, files):
    runner = run({"by_epoch": False, **options}, epochs=2)
    assert {path.name for path in runner.work_dir.glob("*.pth")} == {
        f"iter_{number}.pth" for number in files
    }
    newest = runner.work_dir / f"iter_{files[-1]}.pth"
    assert (runner.work_dir / "last_checkpoint").read_text() == f"{newest.name}\n"
    assert load_checkpoint_file(newest)["meta"]["iter"] == files[-1]


def test_optimizer_and_schedules_can_be_left_out(run):
    scheduler = {"type": "StepLR", "step_size": 1}
    options = {"save_optimizer": False, "save_param_scheduler": False}
    for change, keys in (({}, {"optimizer", "param_schedulers"}), (options, set())):
        runner = run(change, epochs=1, param_scheduler=scheduler)
        content = load_checkpoint_file(runner.work_dir / "epoch_1.pth")
        assert set(content) & {"optimizer", "param_schedulers"} == keys


@pytest.mark.parametrize(
    ("name", "rule", "values", "best"),
    [
        ("accuracy", None, [0.5, 0.9, 0.7, 0.9, 0.8], 2),
        ("val_loss", None, [0.5, 0.2, 0.7, 0.1, 0.8], 4),
        ("odd", "less", [3, 1, 2, 4, 5], 2),
        ("accuracy", "less", [0.5, 0.9, 0.3, 0.9, 0.8], 3),
    ],
    ids=["greater", "less", "rule", "rule-wins"],
)
def test_the_best_epoch_is_kept_by_the_rule(run, name, rule, values, best):
    metric = Scripted(name=name, values=values)
    runner = run({"save_best": name, "rule": rule, "max_keep_ckpts": 1}, val_evaluator=metric)
    assert saved(runner) == [f"best_{name}.pth", "epoch_5.pth"]
    content = load_checkpoint_file(runner.work_dir / f"best_{name}.pth")
    assert content["meta"]["epoch"] == best
    assert content["meta"]["iter"] == 6 * best
    assert "optimizer" not in content
    assert (runner.work_dir / "last_checkpoint").read_text() == "epoch_5.pth\n"


def test_auto_takes_the_first_metric_and_slashes_leave_the_name(run):
    metric = Scripted(values=[0.5], prefix="toy")
    runner = run({"save_best": "auto"}, epochs=1, val_evaluator=metric)
    assert saved(runner) == ["best_toy_accuracy.pth", "epoch_1.pth"]


def test_several_metrics_have_a_best_of_their_own(run):
    metrics = [
        Scripted(name="accuracy", values=[0.5, 0.9, 0.7]),
        Scripted(name="val_loss", values=[0.5, 0.6, 0.3]),
    ]
    options = {"save_best": ["accuracy", "val_loss"], "max_keep_ckpts": 1}
    runner = run(options, epochs=3, val_evaluator=metrics)
    assert saved(runner) == ["best_accuracy.pth", "best_val_loss.pth", "epoch_3.pth"]
    for name, epoch in (("accuracy", 2), ("val_loss", 3)):
        content = load_checkpoint_file(runner.work_dir / f"best_{name}.pth")
        assert content["meta"]["epoch"] == epoch
        assert content["checkpoint_hook"]["best"][name]["epoch"] == epoch


def test_the_last_and_the_best_are_published(run):
    options = {"published_keys": ["meta", "state_dict", "odd"], "save_best": "auto"}
    runner = run(options, epochs=1, val_evaluator=Scripted(values=[0.5]))
    published = [path for path in runner.work_dir.glob("*.pth") if "-" in path.name]
    assert sorted(path.name.split("-")[0] for path in published) == ["best_accuracy", "epoch_1"]
    for path in published:
        assert set(load_checkpoint_file(path)) == {"meta", "state_dict"}
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert path.stem.endswith(f"-{digest[:8]}")
    assert (runner.work_dir / "last_checkpoint").read_text() == "epoch_1.pth\n"


def test_the_best_score_may_be_any_librarys_number(run):
    numpy = pytest.importorskip("numpy")
    metric = Scripted(values=[numpy.float64(0.5), numpy.float32(0.75)])
    runner = run({"save_best": "accuracy"}, epochs=2, val_evaluator=metric)
    content = load_checkpoint_file(runner.work_dir / "best_accuracy.pth")
    assert content["checkpoint_hook"]["best"]["accuracy"]["score"] == 0.75


def test_a_resumed_run_knows_what_to_prune_and_what_was_best(run):
    options = {"save_best": "accuracy", "max_keep_ckpts": 2}
    with pytest.raises(Killed):
        run(
            dict(options),
            val_evaluator=Scripted(values=[0.9, 0.5, 0.5]),
            custom_hooks=[StopBeforeEpoch(3)],
        )
    runner = run(dict(options), val_evaluator=Scripted(values=[0.5, 0.7, 0.6]), resume=True)
    assert saved(runner) == ["best_accuracy.pth", "epoch_4.pth", "epoch_5.pth"]
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 1


def test_the_best_of_the_last_epoch_before_a_kill_is_not_overwritten_by_a_worse_one(run):
    # The checkpoint of epoch 2 was written before its validation found it the best.
    with pytest.raises(Killed):
        run(
            {"save_best": "accuracy"},
            epochs=3,
            val_evaluator=Scripted(values=[0.5, 0.9]),
            custom_hooks=[StopBeforeEpoch(2)],
        )
    runner = run(
        {"save_best": "accuracy"}, epochs=3, val_evaluator=Scripted(values=[0.9, 0.7]), resume=True
    )
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 2


def test_a_fresh_run_does_not_inherit_the_best_of_another(run):
    run({"save_best": "accuracy"}, epochs=1, val_evaluator=Scripted(values=[0.9]))
    runner = run({"save_best": "accuracy"}, epochs=1, val_evaluator=Scripted(values=[0.5]))
    content = load_checkpoint_file(runner.work_dir / "best_accuracy.pth")
    assert content["checkpoint_hook"]["best"]["accuracy"]["score"] == 0.5


def _failing_on(numbers, monkeypatch):
    """Let ``torch.save`` fail on the calls with these numbers, counted from 1."""
    save, calls = torch.save, []

    def fail_sometimes(content, file):
        calls.append(1)
        if len(calls) in numbers:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(torch, "save", fail_sometimes)


def test_a_failed_write_does_not_end_the_training(run, monkeypatch):
    _failing_on({2, 3}, monkeypatch)
    runner = run({"max_keep_ckpts": 1}, epochs=4)
    assert saved(runner) == ["epoch_4.pth"]
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert log.count("No space left on device") == 2
    assert "Training continues." in log


def test_the_old_checkpoint_stays_until_a_new_one_is_whole(run, monkeypatch, tmp_path):
    _failing_on({2, 3}, monkeypatch)
    with pytest.raises(Killed):
        run({"max_keep_ckpts": 1}, epochs=4, custom_hooks=[StopBeforeEpoch(3)])
    assert sorted(p.name for p in (tmp_path / "run").glob("*.pth")) == ["epoch_1.pth"]


class StopAfter(Hook):
    """Ends training early, as EarlyStoppingHook does."""

    def __init__(self, step):
        self.step = step

    @override
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        runner.train_loop.stop_training |= runner.iter + 1 == self.step


@pytest.mark.parametrize(
    ("options", "train_cfg", "files"),
    [
        ({"interval": -1}, {"max_epochs": 5}, ["epoch_3.pth"]),
        ({"interval": 2}, {"max_epochs": 5}, ["epoch_2.pth", "epoch_3.pth"]),
        ({"interval": 3}, {"max_epochs": 5}, ["epoch_3.pth"]),
        ({"interval": 2, "save_last": False}, {"max_epochs": 5}, ["epoch_2.pth"]),
        (
            {"interval": 10, "by_epoch": False},
            {"by_epoch": False, "max_iters": 30},
            ["iter_10.pth", "iter_14.pth"],
        ),
    ],
    ids=["only-last", "interval", "saved-anyway", "not-last", "steps"],
)
def test_a_training_that_a_hook_ends_early_saves_its_last(
    make_runner, options, train_cfg, files, monkeypatch
):
    saves = []
    save = Runner.save_checkpoint

    def note(self, out_dir, filename, **more):
        saves.append(filename)
        save(self, out_dir, filename, **more)

    monkeypatch.setattr(Runner, "save_checkpoint", note)
    runner = make_runner(
        train_cfg=train_cfg,
        default_hooks={"checkpoint": options},
        custom_hooks=[StopAfter(14)],
        **NO_VALIDATION,
    )
    runner.train()
    assert saves == saved(runner) == sorted(files)
    meta = load_checkpoint_file(runner.work_dir / files[-1])["meta"]
    if options.get("save_last", True):
        assert meta["iter"] == runner.iter


@pytest.mark.parametrize("in_background", [False, True], ids=["at-once", "asynchronously"])
def test_a_failed_write_of_the_last_epoch_is_tried_again_and_then_an_error(
    run, monkeypatch, in_background
):
    _failing_on({2, 4, 5}, monkeypatch)
    metric = Scripted(values=[0.5, 0.9])
    runner = run({"async_save": in_background}, epochs=2, val_evaluator=metric)
    assert saved(runner) == ["epoch_1.pth", "epoch_2.pth"]
    assert metric.values == []  # the validation was not lost
    with pytest.raises(CheckpointWriteError, match=r"could not be written to .*run; the log"):
        run({"async_save": in_background}, epochs=1)


def test_a_failed_write_of_the_best_does_not_end_the_training(run, monkeypatch):
    _failing_on({2}, monkeypatch)  # epoch 1 first, then its best
    metric = Scripted(values=[0.9, 0.5, 0.6])
    runner = run({"save_best": "accuracy"}, epochs=3, val_evaluator=metric)
    # What was never written is no best to beat.
    assert load_checkpoint_file(runner.work_dir / "best_accuracy.pth")["meta"]["epoch"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"save_best": ["acc"], "rule": ["less", "less"]},
            r"rule: 2 rules were given for 1 metrics",
        ),
        ({"interval": "1"}, r"CheckpointHook\.interval: an integer is needed, got '1'"),
        ({"save_begin": -1}, r"CheckpointHook\.save_begin: an integer >= 0 is needed, got -1"),
        ({"save_best": 3}, r"CheckpointHook\.save_best: a name or a list .* got 3"),
        ({"save_best": "foo"}, r"CheckpointHook\.rule: .*'foo'.*rule='greater'"),
        ({"save_best": "acc", "rule": "more"}, r"rule: 'greater' or 'less' .*'more'"),
        ({"filename_tmpl": "last.pth"}, r"filename_tmpl: '\{\}' must stand.*got 'last\.pth'"),
    ],
    ids=[
        *("rules", "text", "begin", "number", "metric", "rule", "template"),
    ],
)
def test_wrong_arguments_say_what_is_needed(options, message):
    with pytest.raises(ConfigError, match=message):
        CheckpointHook(**options)


def test_a_metric_that_is_not_reported_names_those_that_are(run):
    with pytest.raises(
        ConfigError, match=r"save_best: 'top5' was asked for; the metrics report 'accuracy'"
    ):
        run({"save_best": "top5"}, epochs=1)


def follow(hook, *reported):
    """Give a hook the metrics of validations; return the names of the files it saves."""
    files = []
    runner = SimpleNamespace(
        is_training=True,
        hooks=[hook],
        work_dir="run",
        epoch=1,
        iter=1,
        logger=logging.getLogger(),
        message_hub=MessageHub(),
        save_checkpoint=lambda _, name, **__: files.append(name),
    )
    for metrics in reported:
        hook.after_val_epoch(runner, metrics)
    return files


def test_auto_passes_over_tables_and_a_metric_by_name_is_a_number():
    found = follow(CheckpointHook(save_best="auto"), {"table": "a | b", "accuracy": 0.5})
    assert found == ["best_accuracy.pth"]
    for save_best in ("auto", "table"):
        hook = CheckpointHook(save_best=save_best, rule="less")
        with pytest.raises(ConfigError, match=r"save_best: 'table' .*'a \| b' for it; a number"):
            follow(hook, {"table": "a | b"})


@pytest.mark.parametrize(
    ("metric", "rule"),
    [
        ("accuracy", "greater"),
        ("coco/bbox_mAP_50", "greater"),
        ("mIoU", "greater"),
        ("aAcc", "greater"),
        ("mDice", "greater"),
        ("PSNR", "greater"),
        ("val_loss", "less"),
        ("MAPE", "less"),
    ],
)
def test_rule_is_told_from_the_name_of_the_metric(metric, rule):
    found = follow(CheckpointHook(save_best=metric), {metric: 0.5}, {metric: 0.6})
    assert len(found) == (2 if rule == "greater" else 1)


def test_validation_outside_training_saves_nothing(make_runner, caplog):
    caplog.set_level(logging.INFO)
    runner = make_runner(default_hooks={"checkpoint": {"save_best": "accuracy"}})
    runner.val()
    assert saved(runner) == []


def test_a_second_hook_is_refused(run):
    with pytest.raises(ConfigError, match=r"custom_hooks\[0\]: a second CheckpointHook was given"):
        run({}, custom_hooks=[{"type": "CheckpointHook", "interval": 2}])
