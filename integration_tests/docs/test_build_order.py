"""The table of what is built when is what a run does."""

import functools
import re

import pytest
from pages import LANGUAGES, blocks_of, read_page

from mm_runner import Runner

_TABLE = re.compile(r"^\| `Runner\(\.\.\.\)` \|.*?\n\n", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| (?:`(\w+)\(.*?\)`)? ?\| `(\w+)\((.*?)\)` \|", re.MULTILINE)


@pytest.mark.parametrize("language", LANGUAGES)
def test_parts_are_built_in_the_order_that_is_written(language, tmp_path, monkeypatch):
    page = read_page(language, "runner.md")
    rows = _rows(page)
    methods = {name for _, name, _ in rows}
    assert {*Runner.build_order, "build_model", "wrap_model", "build_test_loop"} <= methods
    assert _calls(methods, _config_of(page, tmp_path, monkeypatch)) == _phases(rows)


@pytest.mark.parametrize("language", LANGUAGES)
def test_methods_take_what_is_written(language):
    for _, name, arguments in _rows(read_page(language, "runner.md")):
        code = getattr(Runner, name).__code__
        taken = [one for one in code.co_varnames[: code.co_argcount] if one != "self"]
        shown = arguments.split(", ") if arguments else []
        assert taken[: len(shown)] == shown, name


def _rows(page):
    (table,) = _TABLE.findall(page)
    return _ROW.findall(table)


def _phases(rows):
    phases = {}
    for phase, name, _ in rows:
        if phase:
            calls = phases.setdefault(phase, [])
        calls.append(name)
    return phases


def _config_of(page, folder, monkeypatch):
    """Return the configuration of the page's examples, with a test."""
    (source,) = (one.text for one in blocks_of(page) if one.file_name == "points.py")
    space = {"__name__": "points"}
    exec(source, space)  # noqa: S102 (the page's)
    monkeypatch.chdir(folder)
    config = space["config"](train_cfg={"max_epochs": 1})
    test = {f"test_{name}": config[f"val_{name}"] for name in ("dataloader", "cfg", "evaluator")}
    return {**config, **test}


def _calls(methods, config):
    calls = []

    def noting(name):
        own = getattr(Runner, name)

        @functools.wraps(own)
        def call(*args, **kwargs):
            calls.append(name)
            return own(*args, **kwargs)

        return staticmethod(call) if isinstance(_raw(name), staticmethod) else call

    kind = type("Noting", (Runner,), {name: noting(name) for name in methods})
    found = {}
    runner = kind.from_cfg(config)
    found["Runner"] = calls[:]
    for phase in ("train", "test"):
        del calls[:]
        getattr(runner, phase)()
        found[phase] = calls[:]
    return found


def _raw(name):
    return next(vars(kind)[name] for kind in Runner.__mro__ if name in vars(kind))
