"""What waits for a validation, or a metric, that a run does not have."""

import pytest
from toy import NO_VALIDATION, runner_arguments
from typing_extensions import override

from mm_runner import ConfigError, Runner
from mm_runner.evaluator import Accuracy
from mm_runner.loops import EpochBasedTrainLoop
from mm_runner.tools import make_plan, verify_resume

PLATEAU = {"type": "ReduceOnPlateauLR", "monitor": "accuracy"}
SAVING = {"checkpoint": {"save_best": "accuracy", "interval": 1}}


class OwnLoop(EpochBasedTrainLoop):
    """A user's, which may validate by itself."""

    @override
    def run_epoch(self):
        super().run_epoch()


def warnings_of(runner):
    log = (runner.log_dir / f"{runner.timestamp}.log").read_text()
    return [line for line in log.splitlines() if "no validation to take a metric from" in line]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"param_scheduler": PLATEAU}, "param_scheduler follows a metric"),
        ({"default_hooks": SAVING}, "CheckpointHook.save_best was given"),
    ],
    ids=["schedule", "best"],
)
def test_it_is_told_once_as_training_begins(make_runner, arguments, told):
    runner = make_runner(**arguments, **NO_VALIDATION)
    runner.train()
    (line,) = warnings_of(runner)
    assert "WARNING" in line
    assert told in line


@pytest.mark.parametrize(
    "arguments",
    [
        {"param_scheduler": PLATEAU, "default_hooks": SAVING},
        {"param_scheduler": {"type": "StepLR", "step_size": 1}, **NO_VALIDATION},
        {
            "param_scheduler": PLATEAU,
            "train_cfg": {"type": OwnLoop, "max_epochs": 1},
            **NO_VALIDATION,
        },
    ],
    ids=["validates", "waits for nothing", "own loop"],
)
def test_a_run_that_gets_what_it_waits_for_is_not_told(make_runner, arguments):
    runner = make_runner(**arguments)
    runner.train()
    assert warnings_of(runner) == []


def test_a_check_of_resuming_leaves_validations_out_and_is_not_told(tmp_path, capfd):
    verify_resume(runner_arguments(tmp_path / "run", param_scheduler=PLATEAU))
    captured = capfd.readouterr()
    assert "no validation" not in captured.out + captured.err


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
