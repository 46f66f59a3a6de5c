import json
import types

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from mm_compile._cache._graph import device_types_of, mark_of
from mm_compile._cache._key import find_key

IS_NEW = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
pytestmark = pytest.mark.skipif(not IS_NEW, reason="this torch keeps no graphs")


def test_a_key_is_json_and_stable():
    key = find_key({"cpu"}, {"mode": "default"})
    assert json.loads(json.dumps(key.facts)) == key.facts
    assert key.name == find_key({"cpu"}, {"mode": "default"}).name
    assert key.facts["torch"] == torch.__version__
    assert set(key.places) == {"torch", "python", "compiler"}


def test_config_compiler_and_threads_are_part_of_it(monkeypatch):
    plain = find_key({"cpu"}, {}).name
    assert find_key({"cpu"}, {"options": {"max_fusion_size": 8}}).name != plain
    num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads + 1)
    try:
        assert find_key({"cpu"}, {}).name != plain
    finally:
        torch.set_num_threads(num_threads)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert find_key({"cpu"}, {}).facts["compiler"] == "none"
    assert find_key({"cpu"}, {}).name != plain


def test_functions_among_options_are_named_not_located():
    facts = [
        find_key({"cpu"}, {"options": {"post_grad_custom_pre_pass": function}}).facts
        for function in (test_a_key_is_json_and_stable, test_a_key_is_json_and_stable)
    ]
    assert facts[0] == facts[1]
    assert "0x" not in json.dumps(facts[0]["config"])


def test_the_gpu_is_part_of_it_by_a_stand_in(monkeypatch):
    """No GPU here: a stand-in for the module of a device."""
    names = []
    for capability in ((8, 0), (9, 0)):
        module = types.SimpleNamespace(
            get_device_name=lambda: "Some GPU",
            get_device_capability=lambda capability=capability: capability,
        )
        monkeypatch.setattr(torch, "cuda", module)
        key = find_key({"cuda", "cpu"}, {})
        assert key.facts["devices"]["cuda"]["name"] == "Some GPU"
        assert key.facts["devices"]["cuda"]["capability"] == list(capability)
        names.append(key.name)
    assert names[0] != names[1]


def test_a_mark_is_of_code_inputs_and_mode():
    def mark(module, *inputs):
        return mark_of(torch.fx.symbolic_trace(module), inputs)

    inputs = torch.ones(2, 3)
    plain = mark(nn.Linear(3, 4), inputs)
    assert mark(nn.Linear(3, 4), inputs) == plain
    others = [
        mark(nn.Linear(3, 5), inputs),
        mark(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), inputs),
        mark(nn.Linear(3, 4), torch.ones(4, 3)),
        mark(nn.Linear(3, 4), inputs.double()),
        mark(nn.Linear(3, 4), torch.ones(3, 2).t()),
        mark(nn.Linear(3, 4), torch.ones(2, 3, requires_grad=True)),
    ]
    with torch.no_grad():
        others.append(mark(nn.Linear(3, 4), inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        others.append(mark(nn.Linear(3, 4), inputs))
    assert len({plain, *others}) == 1 + len(others)


def test_each_gpu_of_a_machine_has_marks_of_its_own():
    """Inductor generates other code for each, and ranks must not wait for what they cannot use."""
    graph = torch.fx.symbolic_trace(nn.Identity())
    with FakeTensorMode():  # needs no GPU
        marks = [mark_of(graph, [torch.ones(2, device=f"cuda:{index}")]) for index in (0, 1, 1)]
    assert marks[0] != marks[1]
    assert marks[1] == marks[2]


def test_devices_are_those_of_parameters_and_inputs():
    assert device_types_of(nn.Linear(1, 1), []) == {"cpu"}
    assert device_types_of(nn.Linear(1, 1, device="meta"), [torch.ones(1), 3]) == {"cpu", "meta"}
    assert device_types_of(nn.Identity(), []) == {"cpu"}
