import logging

import pytest
import torch
from blocks import Stack, Stages
from torch import nn
from toy import needs_compile

from mm_compile import ConfigError, RecompileLimitError, compile_model
from mm_compile._torch import shares_code, takes_version_limit, torch_version

pytestmark = needs_compile


@pytest.fixture(autouse=True)
def _log(caplog):
    # dynamo reads the level of the loggers, and would write a book into each failure
    caplog.set_level(logging.WARNING, "mm_compile")


def warnings_of(caplog):
    return [
        record.getMessage() for record in caplog.records if record.name.startswith("mm_compile")
    ]


def reason(text):
    """Return what a message says of a failed guard; older torch versions do not report it."""
    return text if torch_version() >= (2, 9) else "this torch does not report it"


def run(model, rows):
    for number in rows:
        model(torch.randn(number, 4))


@pytest.mark.skipif(torch_version() < (2, 1), reason="this torch does not notice changing sizes")
def test_five_shapes_make_at_most_two_graphs_of_each_region(backend, caplog):
    model = Stages()
    handle = compile_model(model, {"backend": backend, "regions": "auto"})
    run(model, [3, 4, 5, 6, 7])
    num_kinds = 3 if shares_code() else 6
    assert backend.graphs == 2 * num_kinds
    assert [(region.graphs, region.recompiles) for region in handle.regions] == [(2, 1)] * 6
    assert backend.calls == 30
    assert warnings_of(caplog) == []


def test_beyond_the_limit_it_compiles_for_any_size_and_names_what_changed(backend, caplog):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    cfg = {"backend": backend, "dynamic": False, "recompile_limit": 2}
    handle = compile_model(model, cfg)
    run(model, [3, 4, 5])
    assert warnings_of(caplog) == []
    run(model, [6, 7, 8, 9])
    (line,) = warnings_of(caplog)
    assert reason("size mismatch at index 0. expected 5, actual 6") in line
    assert "compiled again 3 times, recompile_limit is 2" in line
    assert "now compiles for any size" in line
    assert backend.graphs == 5
    assert handle.regions[0].is_compiled


def test_the_policy_eager_stops_compiling(backend, caplog, model):
    handle = compile_model(
        model, {"backend": backend, "dynamic": False, "recompile_limit": 1, "on_recompile": "eager"}
    )
    run(model, [3, 4, 5, 6, 7])
    assert backend.graphs == backend.calls == 3
    (line,) = warnings_of(caplog)
    assert "the model (Toy) runs eagerly from now on" in line
    assert reason("tensor 'inputs' size mismatch at index 0. expected 4, actual 5") in line
    assert not handle.regions[0].is_compiled


def test_training_and_evaluation_have_budgets_of_their_own(backend, model):
    cfg = {"backend": backend, "dynamic": False, "recompile_limit": 1, "on_recompile": "raise"}
    compile_model(model, cfg)
    run(model, [3, 4])
    model.eval()
    with torch.no_grad():
        run(model, [3, 4])
    assert backend.graphs == 4
    with torch.no_grad(), pytest.raises(RecompileLimitError):
        run(model, [5])


@pytest.mark.skipif(takes_version_limit(), reason="this torch takes a limit for each function")
def test_a_limit_that_dynamo_would_cut_short_is_refused(model):
    most = torch._dynamo.config.cache_size_limit
    with pytest.raises(ConfigError, match=r"Raise torch\._dynamo\.config\.cache_size_limit too"):
        compile_model(model, {"backend": "eager", "recompile_limit": most - 3})


@pytest.mark.skipif(not takes_version_limit(), reason="this torch has one limit for all")
def test_a_limit_beyond_that_of_dynamo_is_one_of_its_own(backend, caplog):
    num_sizes = torch._dynamo.config.recompile_limit + 4
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    cfg = {"backend": backend, "dynamic": False, "recompile_limit": num_sizes - 1}
    handle = compile_model(model, cfg)
    run(model, range(1, num_sizes + 1))
    assert warnings_of(caplog) == []
    assert backend.graphs == num_sizes
    assert handle.regions[0].recompiles == num_sizes - 1
    run(model, [num_sizes + 1])
    (line,) = warnings_of(caplog)
    assert f"recompile_limit is {num_sizes - 1}" in line


@pytest.mark.skipif(not shares_code(), reason="this torch shares no code")
def test_blocks_that_share_code_spend_one_budget_and_stop_together(backend):
    cfg = {
        "backend": backend,
        "regions": "auto",
        "dynamic": False,
        "recompile_limit": 1,
        "on_recompile": "eager",
    }
    model = Stack(3)
    handle = compile_model(model, cfg)
    run(model, [3, 4, 5, 6, 7])
    # Of two shapes; the first block, whose inputs have no gradient, has a graph of its own of each.
    assert backend.graphs == 4
    assert not any(region.is_compiled for region in handle.regions)
    assert len({region.failure for region in handle.regions}) == 1
