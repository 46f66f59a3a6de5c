import inspect

import pytest
import torch
from formulas import CASE_IDS, EACH_CASE, follow, make_gradients, make_groups, make_start

import mm_npu

pytestmark = pytest.mark.filterwarnings("ignore::mm_npu.PortableOptimizerWarning")

NUM_STEPS = 200
each_case = pytest.mark.parametrize(("name", "options"), EACH_CASE, ids=CASE_IDS)


def all_options(name, options):
    """Complete a case by the constructor's defaults."""
    parameters = inspect.signature(getattr(mm_npu, name)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **options}


def train(name, options, start, num_steps=NUM_STEPS, dtype=torch.float64, seed=0):
    params = [torch.nn.Parameter(p.to(dtype, copy=True)) for p in start]
    optimizer = getattr(mm_npu, name)(make_groups(params), **options)
    for step in range(1, num_steps + 1):
        for p, gradient in zip(params, make_gradients(step, seed), strict=True):
            p.grad = gradient.to(dtype)
        optimizer.step()
    return [p.detach().double() for p in params], optimizer


def relative_error(ours, expected):
    differences = torch.cat([(a - b).flatten() for a, b in zip(ours, expected, strict=True)])
    return float(differences.abs().max() / max(float(b.abs().max()) for b in expected))


@each_case
def test_two_hundred_steps_are_those_of_the_formula(name, options, request):
    seed = CASE_IDS.index(request.node.callspec.id)
    start = make_start(seed)
    expected, states = follow(name, all_options(name, options), start, NUM_STEPS, seed)
    assert relative_error(expected, start) > 1e-3  # they went somewhere
    for dtype, largest in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        ours, _ = train(name, options, start, dtype=dtype, seed=seed)
        assert relative_error(ours, expected) < largest
    if "delta" in options:  # AdamP: both projections, and none, were met
        projections = set().union(*(state.get("projected", set()) for state in states))
        assert projections == {True, False}
