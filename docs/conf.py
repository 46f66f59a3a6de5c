"""How Sphinx builds the site, from the top of the repository: ``nox -s docs``.

Each language is a site of its own, with its own pages and search: ``-t zh_cn`` builds the Chinese.
"""

import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

sys.path.insert(0, str(Path(__file__).parent))
from configuration_keys import keys_of

FOLDER, OTHER, OTHER_NAME = "en", "zh_cn", "中文"
if tags.has("zh_cn"):  # noqa: F821 - Sphinx defines it
    FOLDER, OTHER, OTHER_NAME = "zh_cn", "en", "English"

project = "mm"
author = "The mm contributors"
copyright = author
language = "zh_CN" if FOLDER == "zh_cn" else "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
extensions += ["sphinxcontrib.programoutput"]
root_doc = f"docs/{FOLDER}/index"
# The packages' own pages are a part of the site, so that links to them work there too.
include_patterns = [f"docs/{FOLDER}/**", "packages/*/README.md", "packages/*/CHANGELOG.md"]
exclude_patterns = [".*", "dist", "integration_tests", "packages/*/src", "packages/*/tests"]
myst_heading_anchors = 3
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Names of torch and of private modules have no page here.
nitpick_ignore_regex = [("py:.*", ".*")]
suppress_warnings = ["ref.python"]  # several packages have a ConfigError
napoleon_use_ivar = True
html_theme = "furo"
# With enough contrast for readers with low vision.
pygments_style, pygments_dark_style = "xcode", "monokai"
html_theme_options = {
    "light_css_variables": {
        "color-code-background": "#f8f8f8",
        "diff-removed": "#a40e26",
        "diff-added": "#116329",
    },
    "dark_css_variables": {"diff-removed": "#ff7b90", "diff-added": "#a6e22e"},
}
html_static_path, html_css_files = ["site.css"], ["site.css"]
html_title = "mm"
templates_path = ["templates"]
html_context = {"folder": FOLDER, "other": OTHER, "other_name": OTHER_NAME}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}


def link_to_own_language(_app: object, name: str, source: list[str]) -> None:
    """Let the packages' pages, which are in English, link to the pages of this site."""
    if name.startswith("packages/") and FOLDER != "en":  # where headings have other names
        source[0] = re.sub(r"docs/en/(\w+\.md)(#[\w-]+)?", rf"docs/{FOLDER}/\1", source[0])


def join_chinese_lines(_app: object, doctree: nodes.document) -> None:
    """Remove line breaks that a browser would show as a space within Chinese text."""
    marks = "\u3001\u3002\uff00-\uffef"
    between = re.compile(rf"[\u4e00-\u9fff{marks}]\n[\u4e00-\u9fff{marks}]|[{marks}]\n.")
    for parent in doctree.findall(nodes.TextElement):
        texts = [one.astext() for one in parent]
        for at, text in enumerate(texts):
            around = "".join(texts[:at])[-1:] + "\n" + "".join(texts[at + 1 :])[:1]
            if text == "\n" and between.search(around):
                parent[at] = nodes.Text("")


def complete_roles(_app: object, _page: str, _template: str, context: dict, _tree: object) -> None:
    """Give captions a level, and what scrolls the focus, for screen readers and the keyboard."""
    for key in ("body", "furo_navigation_tree"):
        text = context.get(key, "").replace('role="heading">', 'role="heading" aria-level="2">')
        text = text.replace("<pre>", '<pre tabindex="0">')
        context[key] = text.replace('class="table-wrapper', 'tabindex="0" class="table-wrapper')


class ConfigurationKeys(Directive):
    """Show a section of the keys of a configuration."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return a block of text."""
        text = keys_of(self.arguments[0])
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Any) -> None:
    """Register the directive and the event handlers; Sphinx calls this."""
    app.add_directive("configuration-keys", ConfigurationKeys)
    app.connect("source-read", link_to_own_language)
    app.connect("doctree-read", join_chinese_lines)
    app.connect("html-page-context", complete_roles, priority=900)  # after the theme
