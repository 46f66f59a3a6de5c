"""What waits for a validation in a run that has none."""

import pytest
from toy import NO_VALIDATION, runner_arguments
from typing_extensions import override

from mm_runner.loops import EpochBasedTrainLoop
from mm_runner.runner import verify_resume

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


def test_each_of_both_is_told(make_runner):
    runner = make_runner(param_scheduler=PLATEAU, default_hooks=SAVING, **NO_VALIDATION)
    runner.train()
    assert len(warnings_of(runner)) == 2


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
