"""Pages list every component, key and command, and quote messages as they are."""

import inspect
import re
import sys
from importlib.metadata import entry_points

import pytest
from pages import DOCS, LANGUAGES, ROOT, read_page

from mm_runner import Runner
from mm_runner.optim.schedules._families import FAMILIES
from mm_runner.runner._checks import CFG_KEYS

sys.path.insert(0, str(DOCS))
from configuration_keys import SECTIONS


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_hook_loop_and_schedule_is_on_the_page(language):
    text = read_page(language, "runner.md")
    components = {
        one.name for group in ("mm.hooks", "mm.loops") for one in entry_points(group=group)
    }
    for name in components | {kind.__name__ for kind, _ in FAMILIES.values()}:
        assert re.search(rf"`{name}\b", text), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_key_of_a_configuration_is_listed(language):
    text = read_page(language, "configuration.md")
    keys = "\n".join(line.split("|")[1] for line in text.splitlines() if line.startswith("|"))
    arguments = [name for name in inspect.signature(Runner).parameters if name != "cfg"]
    assert [name for name in (*arguments, *CFG_KEYS) if f"`{name}`" not in keys] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_section_of_keys_is_shown(language):
    text = read_page(language, "reference/configuration_keys.md")
    assert re.findall(r"{configuration-keys} (\w+)", text) == list(SECTIONS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_command_is_listed(language):
    overview = read_page(language, "configuration.md")
    reference = read_page(language, "reference/commands.md")
    for entry in entry_points(group="mm.commands"):
        assert f"`mm-runner {entry.name} " in overview, entry.name
        assert f"{{program-output}} mm-runner {entry.name} --help" in reference, entry.name


def test_links_of_pages_outside_the_site_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob(".github/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page, target)


def test_messages_to_look_up_are_those_that_are_raised():
    sources = "".join(
        path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("packages/*/src/**/*.py"))
    )
    sources = re.sub(r'"\s*f?"', "", sources)  # texts over several lines
    titles = [
        re.findall("(?m)^### .*`(.+)`$", read_page(one, "troubleshooting.md")) for one in LANGUAGES
    ]
    assert titles[0] == titles[1]
    for title in titles[0]:
        for piece in filter(None, map(str.strip, title.split("..."))):
            assert piece in sources, piece
