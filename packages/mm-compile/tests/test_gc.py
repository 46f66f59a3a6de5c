"""Python's garbage collector while torch's compiler works."""

import gc
from threading import Barrier, Thread

import pytest
import torch
from torch import nn

from mm_compile import compile_model
from mm_compile._gc import rare_collections


@pytest.fixture(autouse=True)
def collector():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_runs_rarely_while_a_model_compiles_and_as_before_afterwards():
    gc.set_threshold(701, 11, 12)
    seen = []

    def backend(graph, _):
        seen.append(gc.get_threshold()[0])
        return graph.forward

    model = nn.Linear(2, 1)
    compile_model(model, {"backend": backend})
    assert gc.get_threshold() == (701, 11, 12)
    model(torch.ones(1, 2))
    assert seen == [300_000]
    assert gc.get_threshold() == (701, 11, 12)


def test_a_failing_compilation_puts_the_collector_back():
    gc.set_threshold(701, 11, 12)

    def backend(_graph, _):
        raise RuntimeError("no such luck")

    model = nn.Linear(2, 1)
    compile_model(model, {"backend": backend, "on_error": "eager"})
    model(torch.ones(1, 2))
    assert gc.get_threshold() == (701, 11, 12)


@pytest.mark.parametrize("threshold", [0, 500_000])
def test_a_collector_that_runs_more_rarely_still_is_left_alone(threshold):
    gc.set_threshold(threshold, 11, 12)
    with rare_collections:
        assert gc.get_threshold() == (threshold, 11, 12)
    assert gc.get_threshold() == (threshold, 11, 12)


def test_what_somebody_sets_meanwhile_stays():
    gc.set_threshold(701, 11, 12)
    with rare_collections:
        gc.set_threshold(5, 6, 7)
    assert gc.get_threshold() == (5, 6, 7)


def test_the_last_of_several_threads_puts_it_back():
    gc.set_threshold(701, 11, 12)
    begun, ended = Barrier(2, timeout=60), Barrier(2, timeout=60)

    def other():
        with rare_collections:
            begun.wait()
            ended.wait()

    thread = Thread(target=other)
    with rare_collections:
        thread.start()
        begun.wait()
    during = gc.get_threshold()[0]
    ended.wait()
    thread.join(60)
    assert (during, gc.get_threshold()) == (300_000, (701, 11, 12))
