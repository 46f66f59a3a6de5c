"""What importing inductor costs; in new processes, since it happens once."""

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "compile"), reason="there is no inductor before torch 2.0"
)

_COUNT_PARSED = """
import copy, sys
import jinja2

parsed = []
parse = jinja2.Environment.from_string

def from_string(self, source, *args, **kwargs):
    parsed.append(source)
    return parse(self, source, *args, **kwargs)

jinja2.Environment.from_string = from_string
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_templates_are_parsed_when_they_are_used():
    pytest.importorskip("jinja2")
    common = pytest.importorskip("torch._inductor.codegen.common")
    if not hasattr(common, "KernelTemplate"):
        pytest.skip("before torch 2.2 or so inductor parses elsewhere")
    out = run(
        _COUNT_PARSED
        + """
from mm_compile._inductor_import import import_inductor
import_inductor()
import_inductor()
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.select_algorithm import TritonTemplate
print(len(parsed))
templates = [one.template for one in TritonTemplate.all_templates.values()]
print(len(templates) > 1, all(templates))
copied = copy.copy(templates[0])
print(len(parsed))
print(type(templates[0].render).__name__, type(copied.render).__name__, len(parsed))
for template in (templates[0], copied):
    template.render, template.generate, template.render
print(len(parsed))
# What is made from now on is parsed at once, as ever.
print(type(KernelTemplate._template_from_string("{{ 1 + 1 }}")).__module__)
"""
    )
    assert out == ["0", "True", "True", "0", "method", "method", "2", "2", "jinja2.environment"]


def test_without_jinja2_inductor_is_imported_as_ever():
    out = run(
        """
import sys
sys.modules["jinja2"] = None
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == "jinja2" else find_spec(name, *args)
import torch
from torch import nn
from mm_compile import compile_model
model = nn.Linear(2, 2)
compile_model(model)
print(model(torch.ones(1, 2)).shape[1])
"""
    )
    assert out[-1] == "2"
