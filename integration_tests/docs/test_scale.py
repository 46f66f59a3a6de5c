"""The page on scale has every formula, every constant with its origin, and every limit."""

import re
import sys

import pytest
from pages import LANGUAGES, ROOT, read_page

sys.path.append(str(ROOT / "integration_tests" / "benchmarks"))
from scaling.model import Constants, Job, default_constants, describe_constants, find_limits
from scaling.model.formulas import FORMULAS

_ORIGINS = {
    "en": {"measured": "measured:", "cited": "cited:"},
    "zh_cn": {"measured": "实测", "cited": "引用"},
}


def read_rows(language):
    lines = read_page(language, "scale.md").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_constant_has_its_value_and_origin(language):
    rows = {row[0].strip("`"): row for row in read_rows(language)}
    gloo = default_constants("gloo")
    for name, about in describe_constants(Constants(), "nccl").items():
        _, value, _, origin = rows[name]
        expected = f"{about['value']:g}"
        if getattr(gloo, name) != about["value"]:
            expected += f" / {getattr(gloo, name):g}"
        assert value == f"{expected} {about['unit']}".strip()
        assert origin.startswith(_ORIGINS[language][about["origin"]]), name


@pytest.mark.parametrize("language", LANGUAGES)
def test_limits_are_those_of_the_default_job(language):
    shown = [row[0].replace(",", "") for row in read_rows(language) if len(row) == 4]
    numbers = [int(cell) for cell in shown if cell.isdecimal()]
    limits = [limit.first for limit in find_limits(Job(), Constants()) if limit.first]
    assert [number for number in numbers if number in limits] == limits


@pytest.mark.parametrize("language", LANGUAGES)
def test_formulas_are_the_command_s(language):
    words = re.sub(r"(?ms)^```.*?^```", "", read_page(language, "scale.md"))
    code = set(re.findall(r"`([^`]+)`", words))
    assert [each.formula for each in FORMULAS if each.formula not in code] == []
