"""Tables of arguments, keys and options say what the components, and the command line, take."""

import ast
import inspect
import re
from argparse import ArgumentParser
from importlib.metadata import entry_points

import pytest
from pages import LANGUAGES, read_page

from mm_runner import Runner
from mm_runner.optim.schedules._families import FAMILIES
from mm_runner.runner._checks import CFG_KEYS

# What the Runner gives.
_GIVEN = ("runner", "dataloader", "evaluator")


@pytest.mark.parametrize("language", LANGUAGES)
def test_signatures_are_those_of_the_components(language):
    found = re.findall(r"`(\w+)\(([^`]*)\)`", read_page(language, "runner.md"))
    shown = dict(reversed(found))  # the first counts
    components = {
        one.name: one.load()
        for group in ("mm.hooks", "mm.loops")
        for one in entry_points(group=group)
    }
    families = {kind.__name__: kind for kind, _ in FAMILIES.values()}
    for name, kind in {**components, **families}.items():
        assert name in shown, f"{name} is not on the page"
        assert arguments_shown(shown[name]) == arguments_of(kind), name


def arguments_shown(text):
    """Return names and defaults, ``None`` where there is none."""
    function = ast.parse(f"def f({text}): ...").body[0].args
    names = [one.arg for one in function.args]
    defaults = [eval(ast.unparse(one), {}) for one in function.defaults]  # noqa: S307 (the page's)
    needed = names[: len(names) - len(defaults)]
    return {**dict.fromkeys(needed), **dict(zip(names[len(needed) :], defaults, strict=True))}


def arguments_of(kind):
    return {
        name: None if one.default is one.empty else one.default
        for name, one in inspect.signature(kind).parameters.items()
        if name not in _GIVEN and one.kind not in (one.VAR_KEYWORD, one.POSITIONAL_ONLY)
    }


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_key_of_a_configuration_is_listed(language):
    text = read_page(language, "configuration.md")
    keys = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    arguments = [name for name in inspect.signature(Runner).parameters if name != "cfg"]
    assert [name for name in (*arguments, *CFG_KEYS) if f"`{name}`" not in keys] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_and_option_is_listed(language):
    text = read_page(language, "configuration.md")
    for entry in entry_points(group="mm.commands"):
        name, parser = entry.name, ArgumentParser()
        entry.load()(parser)
        assert f"`mm-runner {name} " in text, name
        for action in parser._actions:
            # The first is the usual way to write it.
            if action.option_strings and action.dest != "help":
                assert f"`{action.option_strings[0]}" in text, f"{name} {action.option_strings[0]}"
