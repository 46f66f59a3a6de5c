"""Metrics that hooks and schedules follow, and no validation reports."""

import pytest
from toy import NO_VALIDATION, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.evaluator import Accuracy
from mm_runner.tools import make_plan

PLATEAU = {"type": "ReduceOnPlateauLR", "monitor": "accuracy"}
SAVING = {"checkpoint": {"save_best": "accuracy", "interval": 1}}


def asking(name, **options):
    stopping = {"type": "EarlyStoppingHook", "monitor": name, "rule": "greater", **options}
    saving = {"checkpoint": {"save_best": name, "rule": "greater"}}
    return {
        "save_best": ({"default_hooks": saving}, r"^CheckpointHook\.save_best"),
        "stopping": ({"custom_hooks": [stopping]}, r"^EarlyStoppingHook\.monitor"),
        "schedule": ({"param_scheduler": {**PLATEAU, "monitor": name}}, r"^param_scheduler\.mon"),
    }


@pytest.mark.parametrize(("overrides", "where"), asking("acuracy").values(), ids=asking(""))
def test_a_metric_that_no_validation_reports_is_refused_at_the_start(tmp_path, overrides, where):
    arguments = runner_arguments(tmp_path, **overrides)
    message = rf"{where}.*: 'acuracy' was asked for; .* Did you mean 'accuracy'"
    with pytest.raises(ConfigError, match=message):
        make_plan(arguments)
    runner = Runner.from_cfg(arguments)
    with pytest.raises(ConfigError, match=message):
        runner.train()
    assert runner.iter == 0


class More(Accuracy):
    """Reports another name than what it is derived from."""

    @override
    def compute_metrics(self, results):
        return {**super().compute_metrics(results), "acuracy": 1.0}


@pytest.mark.parametrize(
    "evaluator",
    [{"type": More}, {"type": "Accuracy", "prefix": "val"}],
    ids=["subclass", "prefix"],
)
def test_names_of_metrics_are_those_that_are_reported(make_runner, evaluator):
    name = "val/accuracy" if "prefix" in evaluator else "acuracy"
    runner = make_runner(val_evaluator=evaluator, **asking(name)["save_best"][0])
    runner.train()
    assert list(runner.work_dir.glob("best_*"))


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ({"param_scheduler": PLATEAU}, "param_scheduler.monitor was given"),
        ({"default_hooks": SAVING}, "CheckpointHook.save_best was given"),
    ],
    ids=["schedule", "best"],
)
def test_a_setting_that_needs_a_validation_warns_without_one(make_runner, arguments, setting):
    runner = make_runner(**arguments, **NO_VALIDATION)
    runner.train()
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    assert f"{setting} and has no effect: the run has no validation" in log
