"""The documents' pages, and the blocks of code in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path.name for path in (DOCS / "en").glob("*.md"))
LANGUAGES = ("en", "zh_cn")

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
_FILE_NAME = re.compile(r"# ([\w./]+\.(?:py|yaml|json|toml|sh))\n")


class Block(NamedTuple):
    """A block of a page, and what it prints, empty where that is not shown."""

    language: str
    text: str
    shown: str

    @property
    def file_name(self):
        named = _FILE_NAME.match(self.text)
        return named[1] if named else None

    @property
    def is_script(self):
        return self.language == "python" and not self.file_name

    @property
    def is_command(self):
        return self.language == "sh" and not self.file_name


def read_page(language, page):
    return (DOCS / language / page).read_text(encoding="utf-8")


def read_blocks(language, page):
    return blocks_of(read_page(language, page))


def blocks_of(text):
    return [Block(*found) for found in _BLOCK.findall(text) if found[0] != "text"]


def write_files(blocks, folder):
    for block in blocks:
        if block.file_name:
            path = folder / block.file_name
            path.parent.mkdir(exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
