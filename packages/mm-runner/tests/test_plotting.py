import json
import sys

import pytest

from mm_runner import ConfigError, MMRunnerError, WorkDirError
from mm_runner.cli import main
from mm_runner.tools import plot_runs, read_scalars


def write_run(work_dir, name, records, *, cut_off=False):
    lines = [json.dumps(record) for record in records]
    (work_dir / name).mkdir(parents=True)
    text = "\n".join(lines) + ("\n" + lines[0][:9] if cut_off else "\n")
    (work_dir / name / "scalars.jsonl").write_text(text)


def train(step, loss):
    return {"mode": "train", "epoch": 1, "step": step, "loss": loss}


def test_a_resumed_run_replaces_the_steps_it_repeats(tmp_path):
    write_run(tmp_path, "20260101_000000", [train(10, 3.0), train(20, 2.0)])
    write_run(tmp_path, "20260101_000000_2", [train(20, 1.5), train(30, 1.0)])
    write_run(tmp_path, "20260101_000000_10", [train(30, 0.5)])
    assert [(r["step"], r["loss"]) for r in read_scalars(tmp_path)] == [
        (10, 3.0),
        (20, 1.5),
        (30, 0.5),
    ]


def test_a_line_cut_off_by_a_kill_and_lines_of_others_are_passed_over(tmp_path):
    records = [train(10, 3.0), 3, {"step": 1}]
    write_run(tmp_path, "20260101_000000", records, cut_off=True)
    assert read_scalars(tmp_path) == [train(10, 3.0)]


def test_the_log_directory_of_one_run_may_be_given(tmp_path):
    for name, loss in (("20260101_000000", 3.0), ("20260102_000000", 1.0)):
        write_run(tmp_path, name, [train(10, loss)])
    assert read_scalars(tmp_path / "20260101_000000") == [train(10, 3.0)]


def test_a_picture_that_cannot_be_written_is_named(tmp_path):
    pytest.importorskip("matplotlib", exc_type=ImportError)
    write_run(tmp_path, "run", [train(10, 3.0)])
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkDirError, match=r"c\.png was asked for; it cannot be written"):
        plot_runs([tmp_path], tmp_path / "file" / "c.png")


def test_drawing_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_run(tmp_path, "20260101_000000", [train(10, 3.0)])
    with pytest.raises(MMRunnerError, match="needs matplotlib"):
        plot_runs([tmp_path], tmp_path / "curves.png")


@pytest.fixture
def two_runs(tmp_path):
    for name, offset in (("a", 0.0), ("b", 1.0)):
        records = [{"lr": 0.1, **train(10 * n, 3.0 / n + offset)} for n in range(1, 6)]
        validation = {"mode": "val", "epoch": 1, "step": 50, "accuracy": 0.5 + offset / 4}
        write_run(tmp_path / name / "work", "20260101_000000", [*records, validation])
    return [tmp_path / "a" / "work", tmp_path / "b" / "work"]


def test_a_picture_shows_each_run_by_what_tells_it_from_the_others(two_runs, tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", exc_type=ImportError)
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    plot_runs(two_runs, tmp_path / "c.png")
    plot_runs(two_runs, tmp_path / "c.png", keys=["lr", "accuracy", "train/loss"])
    titles = [[axes.get_title() for axes in one.axes if axes.get_visible()] for one in drawn]
    assert titles == [
        ["train/loss", "train/lr", "val/accuracy"],
        ["train/lr", "val/accuracy", "train/loss"],
    ]
    losses = drawn[1].axes[2]
    assert [line.get_label() for line in losses.lines] == ["a/work", "b/work"]
    assert list(losses.lines[0].get_xdata()) == [10, 20, 30, 40, 50]
    assert list(losses.lines[0].get_ydata())[:2] == [3.0, 1.5]
    colours = [[line.get_color() for line in axes.lines] for axes in drawn[1].axes[:3]]
    assert colours[0] == colours[1] == colours[2]


def test_what_was_no_number_is_a_gap(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure", exc_type=ImportError)
    write_run(tmp_path, "run", [train(10, 4.0), train(20, None), train(30, 2.0), train(40, 1.0)])
    drawn = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    plot_runs([tmp_path], tmp_path / "c.png")
    (line,) = drawn[0].axes[0].lines
    assert [str(y) for y in line.get_ydata()] == ["4.0", "nan", "2.0", "1.0"]


def test_what_cannot_be_drawn_is_named(two_runs, tmp_path, capsys):
    with pytest.raises(
        ConfigError, match=r"'los' was asked for; there is: train/lr, train/loss.*'loss'"
    ):
        plot_runs(two_runs, tmp_path / "c.png", keys=["los"])
    with pytest.raises(ConfigError, match=r"c\.pdf was asked for; a picture ends in \.png or"):
        plot_runs(two_runs, tmp_path / "c.pdf")
    assert main(["plot", str(tmp_path)]) == 1
    assert "no <run>/scalars.jsonl" in capsys.readouterr().err


def test_the_command_draws(two_runs, tmp_path, capsys):
    pytest.importorskip("matplotlib", exc_type=ImportError)
    picture = tmp_path / "out.svg"
    arguments = [*map(str, two_runs), "--out", str(picture), "--keys", "loss"]
    assert main(["plot", *arguments]) == 0
    assert capsys.readouterr().out == f"{picture}\n"
    assert picture.read_bytes().startswith(b"<?xml")
    assert main(["plot", *map(str, two_runs)]) == 0
    assert (two_runs[0] / "curves.png").read_bytes().startswith(b"\x89PNG")
