import json
import sys

import pytest

from mm_runner import ConfigError, MMRunnerError
from mm_runner.plotting import plot_curves, read_scalars


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


def test_a_line_that_a_kill_cut_off_is_passed_over(tmp_path):
    write_run(tmp_path, "20260101_000000", [train(10, 3.0)], cut_off=True)
    assert read_scalars(tmp_path) == [train(10, 3.0)]


def test_a_directory_without_records_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no <run>/scalars\.jsonl"):
        read_scalars(tmp_path)


def test_drawing_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    write_run(tmp_path, "20260101_000000", [train(10, 3.0)])
    with pytest.raises(MMRunnerError, match="needs matplotlib"):
        plot_curves(tmp_path, tmp_path / "curves.png")


def test_curves_are_drawn_to_a_picture(tmp_path):
    pytest.importorskip("matplotlib", exc_type=ImportError)
    validation = {"mode": "val", "epoch": 1, "step": 20, "accuracy": 0.5}
    write_run(tmp_path, "20260101_000000", [train(10, None), train(20, 2.0), validation])
    picture = plot_curves(tmp_path, tmp_path / "pictures" / "curves.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
