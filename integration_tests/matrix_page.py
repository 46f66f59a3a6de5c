"""Write the tables of ``docs/*/matrix.md`` from test reports and the packages' metadata.

Usage: ``matrix_page.py REPORTS``: a folder with a JUnit file for each cell that ran, such as
``mm-amp_1.13.1_3.10.xml``. ``docs/matrix.json`` keeps the results, those of other columns too.
"""

import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

from nox.project import load_toml

DOCS = Path(__file__).parents[1] / "docs"
PACKAGES = sorted(path.parent for path in DOCS.parent.glob("packages/*/pyproject.toml"))
HEADS = {
    "en": {
        "requirements": ("package", "version", "requires"),
        "results": ("tests of",),
        "failed": ("failed", "tests of", "torch"),
        "skipped": ("reason", "tests of", "torch"),
    },
    "zh_cn": {
        "requirements": ("包", "版本", "依赖"),
        "results": ("测试对象",),
        "failed": ("失败的测试", "测试对象", "torch"),
        "skipped": ("原因", "测试对象", "torch"),
    },
}


def read_report(path):
    """Return the results of a cell."""
    of, torch, python = path.stem.split("_")
    (suite,) = ET.parse(path).getroot()  # noqa: S314 (pytest wrote it)
    cases = list(suite.iter("testcase"))
    failed = [x for x in cases if x.find("failure") is not None or x.find("error") is not None]
    reasons = [" ".join(x.get("message").split()) for x in suite.iter("skipped")]
    return {
        "of": of,
        "torch": torch,
        "python": python,
        "date": suite.get("timestamp")[:10],
        "passed": len(cases) - len(failed) - len(reasons),
        "failed": sorted({f"{x.get('classname')}::{x.get('name')}" for x in failed}),
        "skipped": Counter(reasons),
        "minutes": round(float(suite.get("time")) / 60, 1),
    }


def list_requirements():
    for folder in PACKAGES:
        project = load_toml(folder / "pyproject.toml")["project"]
        required = [f"Python {project['requires-python']}", *project["dependencies"]]
        yield f"`{folder.name}`", project["version"], ", ".join(f"`{x}`" for x in required)


def list_results(cells):
    columns = list(dict.fromkeys(map(column_of, cells)))
    yield [f"torch {torch}, Python {python}" for torch, python in columns]
    for of in [*(folder.name for folder in PACKAGES), "together"]:
        shown = {column_of(cell): describe(cell) for cell in cells if cell["of"] == of}
        yield f"`{of}`", *(shown.get(column, "") for column in columns)


def column_of(cell):
    return cell["torch"], cell["python"]


def describe(cell):
    skipped = sum(cell["skipped"].values())
    return f"{cell['passed']} / {len(cell['failed'])} / {skipped}, {cell['minutes']} min"


def list_cells_by(kind, cells):
    """Yield each failed test, or each reason to skip one, with where that was."""
    found = defaultdict(list)
    for cell in cells:
        for name in cell[kind]:
            found[name].append(cell)
    for name, where in sorted(found.items()):
        places = (dict.fromkeys(cell[key] for cell in where) for key in ("of", "torch"))
        yield name.replace("|", r"\|"), *map(", ".join, places)


def write_table(page, name, head, rows):
    lines = [head, ["---"] * len(head), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    begin, end = f"<!-- {name} -->\n", "<!-- end -->"
    return re.sub(f"(?s)(?<={begin}).*?(?={end})", lambda _: f"\n{table}\n", page, count=1)


def main():
    file = DOCS / "matrix.json"
    new = [read_report(path) for path in Path(sys.argv[1]).glob("*.xml")]
    columns = {column_of(cell) for cell in new}
    kept = [cell for cell in json.loads(file.read_text()) if column_of(cell) not in columns]
    results = sorted(kept + new, key=lambda x: [int(n) for n in ".".join(column_of(x)).split(".")])
    file.write_text(json.dumps(results, indent=1) + "\n")
    heading, *rows = list_results(results)
    tables = {"requirements": list(list_requirements()), "results": rows}
    tables |= {kind: list(list_cells_by(kind, results)) for kind in ("failed", "skipped")}
    for language, heads in HEADS.items():
        path = DOCS / language / "matrix.md"
        page = path.read_text(encoding="utf-8")
        for name, found in tables.items():
            head = [*heads[name], *(heading if name == "results" else ())]
            page = write_table(page, name, head, found)
        path.write_text(page, encoding="utf-8")


main()
