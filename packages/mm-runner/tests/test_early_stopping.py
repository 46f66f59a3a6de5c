import pytest
from toy import Killed, Scripted, StopBeforeEpoch

from mm_runner import ConfigError
from mm_runner.hooks import EarlyStoppingHook


def stopped_after(make_runner, values, *, name="accuracy", epochs=8, **options):
    """The number of epochs that a run with these results trains."""
    runner = make_runner(
        train_cfg={"max_epochs": epochs},
        val_evaluator=Scripted(name=name, values=values),
        default_hooks={"checkpoint": None},
        custom_hooks=[{"type": "EarlyStoppingHook", "monitor": name, **options}],
    )
    runner.train()
    return runner.epoch


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([0.1, 0.3, 0.35, 0.32, 0.31, 0.9], {"patience": 3}, 5),
        ([0.1, 0.3, 0.35, 0.45, 0.46, 0.47, 0.48], {"patience": 3, "min_delta": 0.15}, 7),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], {"patience": 1, "min_delta": 0.05}, 8),
        ([0.1, float("nan"), 0.3], {}, 2),
        ([0.1, float("nan"), float("nan"), 0.3], {"check_finite": False, "patience": 2}, 3),
        ([0.1, 0.95, 0.3], {"stopping_threshold": 0.9}, 2),
        ([0.5, 0.5, 0.5, 0.5], {"patience": 2, "min_delta": 0}, 3),
        ([0.1, 0.2, 0.2, 0.3, 0.3, 0.3, 0.4], {"patience": 2, "min_delta": 0}, 6),
        ([0.0, 0.5, 1.0, 1.5, 1.75], {"patience": 1, "min_delta": 0.5}, 5),
        ([0.1, 0.3, 0.5, 0.5, 0.9], {"patience": 0}, 4),
    ],
    ids=[
        "patience",
        "delta",
        "better",
        "nan",
        "nan-allowed",
        "threshold",
        "flat",
        "any-change",
        "just-enough",
        "at-once",
    ],
)
def test_training_ends_when_a_greater_metric_stalls(make_runner, values, options, epochs):
    assert stopped_after(make_runner, values, **options) == epochs


@pytest.mark.parametrize(
    ("values", "options", "epochs"),
    [
        ([3.0, 2.0, 1.95, 2.5, 2.5], {"patience": 2}, 4),
        ([3.0, 0.5, 0.1], {"stopping_threshold": 1.0}, 2),
    ],
    ids=["patience", "threshold"],
)
def test_training_ends_when_a_lesser_metric_stalls(make_runner, values, options, epochs):
    assert stopped_after(make_runner, values, name="val_loss", **options) == epochs


def test_a_resumed_run_waits_as_long_as_an_uninterrupted_one(make_runner):
    values = [0.5, 0.3, 0.3, 0.3, 0.3, 0.3]

    def make(epoch, *hooks, **options):
        return make_runner(
            train_cfg={"max_epochs": 6},
            val_evaluator=Scripted(values=values[epoch:]),
            custom_hooks=[
                {"type": "EarlyStoppingHook", "monitor": "accuracy", "patience": 3},
                *hooks,
            ],
            **options,
        )

    with pytest.raises(Killed):
        make(0, StopBeforeEpoch(2)).train()
    # What was learned from the validation after the checkpoint is learned again.
    resumed = make(1, resume=True)
    resumed.train()
    assert resumed.epoch == 4


@pytest.mark.parametrize("by_epoch", [True, False])
@pytest.mark.parametrize(
    ("values", "ends", "goes_on"),
    [
        ([0.5, 0.1, 0.1], {"patience": 2}, {"patience": 4}),
        ([0.5, 0.6, 0.9], {"stopping_threshold": 0.8}, {}),
    ],
    ids=["patience", "threshold"],
)
def test_a_run_that_it_has_ended_trains_on_only_if_asked(
    make_runner, by_epoch, values, ends, goes_on
):
    def trained(values, options, **resume):
        length = "max_epochs" if by_epoch else "max_iters"
        runner = make_runner(
            train_cfg={"by_epoch": by_epoch, length: 5, "val_interval": 1},
            val_evaluator=Scripted(values=values),
            default_hooks={"checkpoint": {"type": "CheckpointHook", "interval": 10}},
            custom_hooks=[{"type": "EarlyStoppingHook", "monitor": "accuracy", **options}],
            **resume,
        )
        runner.train()
        return runner.epoch if by_epoch else runner.iter

    assert trained(values, ends) == 3
    for _ in range(2):  # its validation is not done again
        assert trained([], ends, resume=True) == 3
    assert trained([0.1, 0.1], goes_on, resume=True) == 5


def test_the_rule_that_ended_a_training_is_named(make_runner):
    hook = {"type": "EarlyStoppingHook", "monitor": "accuracy", "patience": 2}
    metric = Scripted(values=[0.9, 0.93, 0.96])
    runner = make_runner(train_cfg={"max_epochs": 9}, val_evaluator=metric, custom_hooks=[hook])
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "did not become greater by min_delta=0.1 in 2 validations (patience=2)" in log


def test_a_second_training_of_a_runner_begins_anew(make_runner):
    runner = make_runner(
        train_cfg={"max_epochs": 6},
        val_evaluator=Scripted(values=[0.5, 0.3, 0.3, 0.2, 0.2, 0.2]),
        custom_hooks=[{"type": "EarlyStoppingHook", "monitor": "accuracy", "patience": 2}],
    )
    for _ in range(2):
        runner.train()
        assert runner.epoch == 3


def test_a_missing_metric_is_told_or_an_error(make_runner):
    hook = {"type": "EarlyStoppingHook", "monitor": "auc"}
    runner = make_runner(custom_hooks=[hook], val_evaluator=Scripted(values=[0.1, 0.2]))
    runner.train()
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert "EarlyStoppingHook.monitor: 'auc' was asked for; the metrics report 'acc" in log
    strict = {**hook, "strict": True}
    runner = make_runner(custom_hooks=[strict], val_evaluator=Scripted(values=[0.1, 0.2]))
    with pytest.raises(ConfigError, match=r"EarlyStoppingHook\.monitor: 'auc'"):
        runner.train()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"monitor": "fancy"}, r"EarlyStoppingHook\.rule: whether a greater or a less 'fancy'"),
        ({"monitor": "auc", "rule": "more"}, r"rule: 'greater' or 'less' is needed, got 'more'"),
        ({"monitor": "auc", "patience": -1}, r"patience: an integer >= 0 is needed, got -1"),
        ({"monitor": "auc", "min_delta": -1}, r"min_delta: a number >= 0 is needed, got -1"),
    ],
    ids=["rule", "wrong-rule", "patience", "delta"],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        EarlyStoppingHook(**options)
