import io
import json
import logging
import re
from pathlib import Path

import pytest
import torch
from rich.console import Console

from mm_runner import ConfigError
from mm_runner.reporting import (
    JsonLinesWriter,
    LogProcessor,
    MessageHub,
    RunConsole,
    close_logger,
    open_logger,
)
from mm_runner.reporting._writers import named_scalars


def test_hub_takes_means_over_a_bounded_window():
    hub = MessageHub(window_size=3)
    for value in range(1000):
        hub.update_scalar("train/loss", float(value))
    hub.update_scalar("train/acc", 1)
    hub.update_scalar("val/loss", 5.0)
    assert hub.means("train") == {"loss": 998.0, "acc": 1.0}
    assert hub.means("val") == {"loss": 5.0}
    assert hub.means("test") == {}
    assert [len(window) for window in hub._scalars.values()] == [3, 1, 1]


def test_hub_answers_what_mmengines_hooks_ask():
    hub = MessageHub(window_size=3)
    for loss in (9.0, 4.0, torch.tensor(1.0), 2.0):
        hub.update_scalars({"train/loss": loss, "train/acc": 1})
    loss = hub.get_scalar("train/loss")
    assert (loss.current(), loss.mean(2), loss.max(), loss.min()) == (2.0, 1.5, 4.0, 1.0)
    assert loss.mean() == pytest.approx(7 / 3)
    hub.update_info_dict({"stage": 2, "name": "warm"})
    assert (hub.get_info("stage"), hub.get_info("name")) == (2, "warm")
    with pytest.raises(ConfigError, match=r"'train/los' was asked for.*mean 'train/loss'"):
        hub.get_scalar("train/los")


def test_hub_does_not_read_a_tensor_before_a_mean_is_asked_for():
    hub = MessageHub()
    # A meta tensor has no value: whoever reads it fails.
    hub.update_scalar("train/loss", torch.ones((), device="meta"))
    with pytest.raises((RuntimeError, NotImplementedError)):
        hub.means("train")


def test_hub_refuses_what_is_no_scalar_when_it_is_given():
    with pytest.raises(ConfigError, match=r"'train/scores' .*shape \(2, 3\).*one element"):
        MessageHub().update_scalar("train/scores", torch.ones(2, 3))


def test_hub_keeps_no_graph_alive():
    hub = MessageHub()
    hub.update_scalar("train/loss", torch.ones((), requires_grad=True) * 2)
    (window,) = hub._scalars.values()
    assert window[0].grad_fn is None


def test_a_log_line_has_the_rate_first_then_times_then_the_rest():
    scalars = {"loss": 2.5, "lr": 0.1, "data_time": 0.001, "acc": 1, "time": 0.25}
    assert LogProcessor().line("train", "[1][10/23]", scalars, eta_s=3661.9) == (
        "Epoch(train)  [1][10/23]  lr: 1.0000e-01  eta: 1:01:01  "
        "time: 0.2500  data_time: 0.0010  loss: 2.5000  acc: 1.0000"
    )
    assert LogProcessor(num_digits=1).line("val", "[1][2/2]", {"acc": 0.55}) == (
        "Epoch(val)  [1][2/2]  acc: 0.6"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": 0}, r"log_processor\.window_size: an integer >= 1 is needed, got 0"),
        ({"num_digits": -1}, r"log_processor\.num_digits: .*got -1"),
    ],
    ids=["window", "digits"],
)
def test_log_processor_checks_its_arguments(options, message):
    with pytest.raises(ConfigError, match=message):
        LogProcessor(**options)


class Keeps:
    """Keeps the names that TensorBoard and W&B show."""

    def __init__(self):
        self.names = []

    def write(self, record):
        self.names.append(set(named_scalars(record)))


@pytest.mark.parametrize("processor", [{}, {"type": "LogProcessor", "log_with_hierarchy": True}])
def test_names_have_their_phase_with_and_without_a_hierarchy(make_runner, processor):
    keeps = Keeps()
    runner = make_runner(
        train_cfg={"max_epochs": 1},
        default_hooks={"logger": {"interval": 6}},
        log_processor=processor,
        cfg={"log_writers": [keeps]},
    )
    runner.train()
    train, val = keeps.names
    assert train == {"train/lr", "train/loss", "train/time", "train/data_time"}
    assert val == {"val/accuracy", "val/time", "val/data_time"}
    records = [
        json.loads(line) for line in (runner.log_dir / "scalars.jsonl").read_text().splitlines()
    ]
    # What plots and scripts read.
    assert [(record["mode"], "loss" in record) for record in records] == [
        ("train", True),
        ("val", False),
    ]
    log = next(runner.log_dir.glob("*.log")).read_text()
    assert re.search(r"Epoch\(train\)  \[1\]\[6/6\]  lr: \S+  eta: \S+  time: .* loss: ", log)
    assert re.search(r"Epoch\(val\)  \[1\]\[\d/\d\]  time: .* accuracy: ", log)


def test_writer_appends_one_json_object_per_record(tmp_path):
    writer = JsonLinesWriter(tmp_path)
    writer.write({"mode": "train", "loss": 0.5})
    writer.write({"loss": float("nan"), "norm": float("inf"), "step": 3})
    writer.close()
    lines = (tmp_path / "scalars.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"mode": "train", "loss": 0.5},
        {"loss": None, "norm": None, "step": 3},
    ]


def terminal(**options):
    file = io.StringIO()
    return file, Console(file=file, width=100, **options)


def test_a_console_prints_lines_as_they_are():
    file, console = terminal(force_terminal=False)
    line = "[bold]x[/bold] :key: [1][ 6/6] " + 100 * "long "
    RunConsole(is_main=True, console=console).print(line)
    assert file.getvalue() == line + "\n"


def test_only_the_main_process_prints():
    file, console = terminal(force_terminal=True)
    quiet = RunConsole(is_main=False, console=console)
    quiet.print("line")
    quiet.start_progress("training", 3)
    quiet.update_progress(1)
    quiet.stop_progress()
    assert file.getvalue() == ""


def test_a_terminal_gets_a_progress_bar():
    file, console = terminal(force_terminal=True)
    run_console = RunConsole(is_main=True, console=console)
    run_console.start_progress("training", 12, 3)
    run_console.update_progress(6, description="epoch 2/4", values="loss 0.5000")
    run_console.print("a line")
    run_console.update_progress(12, values="")
    run_console.stop_progress()
    run_console.stop_progress()
    text = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", file.getvalue())
    assert "training" in text
    assert "3/12" in text
    assert re.search(r"epoch 2/4.*50%.*6/12.*loss 0\.5000", text)
    assert "a line\n" in text
    assert "12/12" in text


def test_a_bar_is_drawn_at_most_ten_times_a_second():
    file, console = terminal(force_terminal=True)
    run_console = RunConsole(is_main=True, console=console)
    run_console.start_progress("training", 10_000)
    run_console.update_progress(1)
    size = len(file.getvalue())
    for done in range(2, 50):
        run_console.update_progress(done)
    drawn = (len(file.getvalue()) - size) / max(size, 1)
    run_console.stop_progress()
    assert drawn < 10


def test_a_runs_logger_writes_to_its_console_and_file_alone(tmp_path, caplog):
    file, console = terminal(force_terminal=False)
    run_console = RunConsole(is_main=True, console=console)
    logger = open_logger("test", run_console, tmp_path / "a.log", "INFO")
    logger.info("one line")
    logger.debug("too fine")
    close_logger(logger)
    logger.info("after closing")
    form = r"\d\d/\d\d \d\d:\d\d:\d\d INFO one line\n"
    assert re.fullmatch(form, file.getvalue())
    assert re.fullmatch(form, (tmp_path / "a.log").read_text())
    assert caplog.records == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_the_newest_run_logs_what_the_other_packages_warn_of(tmp_path):
    console = RunConsole(is_main=True, console=Console(file=io.StringIO()))
    files = [tmp_path / "old.log", tmp_path / "new.log"]
    loggers = [open_logger(file.stem, console, file, "INFO") for file in files]
    logging.getLogger("mm_amp._scaling").warning("skipped")
    for logger in loggers:
        close_logger(logger)
    assert [file.read_text().count("WARNING skipped\n") for file in files] == [0, 1]
    assert not logging.getLogger("mm_amp").handlers


def test_a_log_file_on_a_full_disk_is_told_once(capfd):
    file, console = terminal(force_terminal=False)
    run_console = RunConsole(is_main=True, console=console)
    logger = open_logger("test", run_console, Path("/dev/full"), "INFO")
    logger.info("one")
    logger.info("two")
    close_logger(logger)
    lines = file.getvalue()
    assert lines.count("/dev/full could not be written: [Errno 28] No space left on device") == 1
    assert "INFO one\n" in lines
    assert "INFO two\n" in lines
    assert capfd.readouterr().err == ""
