"""The snippets of the documents train to the end, alone and on two ranks, unchanged."""

import importlib
from pathlib import Path

import pytest
import torch

from mm_compile import can_compile

SEEDS = Path(__file__).parent / "seeds"

NEEDS_INDUCTOR = {"compile_true", "compile_options"}
SNIPPETS = sorted(path.stem for path in SEEDS.glob("*.py") if path.stem != "small_resnet")


def skip_where_it_cannot_compile(snippet):
    support = can_compile()
    if snippet in NEEDS_INDUCTOR and not support.ok:
        pytest.skip(support.reason)


@pytest.fixture
def parameters_at_the_start(monkeypatch):
    monkeypatch.syspath_prepend(SEEDS)
    model = importlib.import_module("small_resnet").ResNet18()
    return {name: value.detach() for name, value in model.named_parameters()}


def outcomes(tmp_path, world_size):
    files = [tmp_path / f"outcome_{rank}.pt" for rank in range(world_size)]
    return [torch.load(file, weights_only=True) for file in files]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_trains_in_one_process(snippet, run_ranks, tmp_path, parameters_at_the_start):
    skip_where_it_cannot_compile(snippet)
    run_ranks(SEEDS / f"{snippet}.py", 1)
    (outcome,) = outcomes(tmp_path, 1)
    assert outcome["epoch"] == 3
    assert outcome["wrapper"] == "ResNet18"
    assert (outcome["graphs"] > 0) == (snippet in NEEDS_INDUCTOR)
    for name, value in parameters_at_the_start.items():
        assert torch.isfinite(outcome["parameters"][name]).all()
        assert not torch.equal(outcome["parameters"][name], value), f"{name} was not trained"
    assert (tmp_path / "work_dir" / "epoch_3.pth").is_file()


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_trains_in_two_processes_to_equal_parameters(snippet, run_ranks, tmp_path):
    skip_where_it_cannot_compile(snippet)
    run_ranks(SEEDS / f"{snippet}.py", 2)
    first, second = outcomes(tmp_path, 2)
    assert first["epoch"] == 3
    for name, value in first["parameters"].items():
        assert torch.equal(value, second["parameters"][name]), f"{name} differs between ranks"
    custom = snippet == "custom_wrapper"
    expected = "CustomDistributedDataParallel" if custom else "MMDistributedDataParallel"
    assert first["wrapper"] == expected
    assert first["find_unused_parameters"] is (snippet == "find_unused_parameters")
    assert (first["graphs"] > 0) == (snippet in NEEDS_INDUCTOR)
