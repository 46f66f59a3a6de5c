"""Lines that messages name: of literals, of names, and of the statement where it is computed."""

import pytest
from located import expect_places

from mm_runner import ConfigError
from mm_runner.config import Config

_BASE = """\
model = dict(
    depth=3,
    width=4,
)
pipeline = [
    dict(type='A', s=1),
    dict(type='B', s=2),
]
"""
# (what the file says from its line 4 on, path of the key, its line: in the file or in the base)
_CASES = [
    ("_B_.pipeline += [\n    dict(s=1),\n    dict(s=2),\n]", "pipeline[3].s", 4),
    ("_B_.pipeline[-1]['s'] = 5", "pipeline[1].s", 4),
    ("_B_.pipeline.insert(0, dict(s=5))", "pipeline[0].s", 4),
    ("_B_.pipeline.pop(0)", "pipeline[0].s", 4),
    ("_B_.pipeline = [dict(s=5)] + _B_.pipeline", "pipeline[1].s", 4),
    ("_B_.model.update(depth=5)", "model.depth", 4),
    ("_B_.model.update(dict(\n    depth=5))", "model.depth", 5),
    ("_B_.model.merge({'depth': 5})", "model.depth", 4),
    ("_B_.model.merge({'depth': 5})", "model.width", "base:3"),
    ("_B_.model.update(_delete_=True, depth=5)", "model.depth", 4),
    ("model = dict(_B_.model, depth=5)", "model.width", "base:3"),
    ("loader = dict(\n    pipeline=_B_.pipeline)", "loader.pipeline[1].s", "base:7"),
    ("model = dict(depth=[i for i in range(3)])", "model.depth[1]", 4),
    ("_B_['model']['depth'] = 5", "model.depth", 4),
    ("_B_.model.depth: int = 5", "model.depth", 4),
    ("_B_.model.depth = _B_.model.width = 5", "model.width", 4),
    ("if True:\n    _B_.model.depth = 5", "model.depth", 5),
    ("_B_.model.depth *= 5", "model.depth", 4),
    ("import copy\nloader = copy.deepcopy(_B_.model)\nloader.depth = 5", "loader.depth", 6),
    ("import copy\nloader = copy.deepcopy(_B_.model)\nloader.depth = 5", "model.depth", "base:2"),
    ("import copy\nloader = copy.deepcopy(_B_.model)\nloader.depth = 5", "loader.width", "base:3"),
    ("_other = _B_.model.copy()\n_other.depth = 5", "model.depth", "base:2"),
]


@pytest.mark.parametrize("form", ["_base_", "read_base"])
@pytest.mark.parametrize(
    ("text", "key", "line"), _CASES, ids=[f"{text} {key}" for text, key, _ in _CASES]
)
def test_a_key_is_located_where_it_was_written_last(write, form, text, key, line):
    if form == "_base_":
        text = "_base_ = 'base.py'\n\n\n" + text.replace("_B_", "_base_")
    else:
        head = (
            "from mm_runner.config import read_base\nwith read_base():\n    from .base import *\n"
        )
        text = head + text.replace("_B_.", "").replace("_B_['model']", "model")
    base, child = write("base.py", _BASE), write("child.py", text + "\n")
    place = f"{child}:{line}" if isinstance(line, int) else f"{base}:{line[5:]}"
    located = Config.fromfile(child).located(ConfigError(f"{key}: wrong"))
    assert str(located) == f"{place}: {key}: wrong"


def test_what_a_file_sets_itself_goes_before_what_it_changes_in_place(write):
    write("base.py", _BASE)
    child = write("child.py", "_base_ = 'base.py'\nmodel = dict(depth=5)\n_base_.model.depth = 6\n")
    cfg = Config.fromfile(child)
    assert (cfg.model.depth, str(cfg.located(ConfigError("model.depth: x")))) == (
        5,
        f"{child}:2: model.depth: x",
    )


def test_lines_are_known_through_several_files_of_any_form(write):
    base = write("base.json", '{"model":\n  {"depth": 1, "parts": [1,\n 2]}}')
    other = write("other.yaml", "lr: 1\nloader: {n: {{$MM_TEST_NONE:4}},\n  m: 2}\n")
    middle = write("middle.yaml", "_base_: [base.json, other.yaml]\nmodel:\n  width: 2\n")
    last = write(
        "last.py",
        "_base_ = ['middle.yaml']\nsize = {{$MM_TEST_NONE:4}}\n_base_.model.parts.append(3)\n"
        "loader = dict(\n    _delete_=True,\n    k=2)\n",
    )
    cfg = Config.fromfile(last)
    expect_places(
        cfg,
        [
            ("model.depth: x", f"{base}:2"),
            ("model.parts[2]: x", f"{last}:3"),
            ("model.width: x", f"{middle}:3"),
            ("lr: x", f"{other}:1"),
            ("loader.k: x", f"{last}:6"),
            ("loader.m: x", f"{last}:4"),
            ("size: x", f"{last}:2"),
            ("absent: x", f"{last}"),
        ],
    )
    last.write_text("model = (", encoding="utf-8")
    assert str(cfg.located(ConfigError("lr: x"))) == f"{last}: lr: x"
