"""What ``mm-dist scale`` says breaks first, and where its constants are from."""

from dataclasses import fields, replace

import pytest

from mm_dist._hang_report._timing import plan_timing
from mm_dist._scale import (
    BACKENDS,
    Constants,
    Job,
    default_constants,
    describe_constants,
    estimate,
    find_limits,
)
from mm_dist._scale._cluster import Cluster
from mm_dist._scale._limit_network import network_limits
from mm_dist._scale._limit_storage import storage_limits
from mm_dist._scale._limit_store import store_limits
from mm_dist._scale._limits import MOST_RANKS, _first_excess
from mm_dist._scale._startup import gloo_seconds, num_peers


@pytest.mark.parametrize("threshold", [0.5, 1, 7, 8, 9, 1000, 1023.5, 1024])
def test_first_excess_is_the_first(threshold):
    found = _first_excess(float, lambda _: threshold)
    assert found == int(threshold) + 1


def test_first_excess_is_none_where_there_is_enough():
    assert _first_excess(float, lambda _: MOST_RANKS) is None
    assert _first_excess(float, lambda _: MOST_RANKS - 1) == MOST_RANKS


def first(limits, what):
    (found,) = (limit.first for limit in limits if limit.what.startswith(what))
    return found


def test_open_files_run_out_where_they_are_used_up():
    own = Constants(open_files=1024, most_files=4096)
    limits = {backend: find_limits(Job(backend=backend), own) for backend in BACKENDS}
    # 18 files, and for each rank its connection; with NCCL also that of its watch.
    assert first(limits["gloo"], "open files of torchrun") == 1024 - 18 + 1
    assert first(limits["nccl"], "open files of torchrun") == (1024 - 18) // 2 + 1
    # Rank 0 has those of gloo besides, and raises its limit as far as it may.
    assert first(limits["gloo"], "open files of rank 0, which") == (4096 - 17) // 2 + 1
    assert first(limits["nccl"], "open files of rank 0, which") == (4096 - 17) // 3 + 1
    assert first(limits["gloo"], "open files of rank 0 while") == (4096 - 17) // 4 + 1
    # 9 files, and a connection to each rank but oneself.
    assert first(limits["gloo"], "open files of every rank: gloo") == 4096 - 9 + 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_limit_is_met_below_its_number_and_not_from_it_on(backend):
    job, own = Job(backend=backend), default_constants(backend)

    def make_cluster(ranks):
        return Cluster(ranks, job.ranks_per_node, own)

    demands = [
        *store_limits(job, own, make_cluster),
        *network_limits(job, own, make_cluster),
        *storage_limits(job, own, make_cluster),
    ]
    limits = {limit.what: limit for limit in find_limits(job, own)}
    assert len(limits) == len(demands) >= 16
    for demand in demands:
        number = limits[demand.what].first
        assert demand.then
        assert demand.answer
        if number is None:
            assert demand.needs(MOST_RANKS) <= demand.has(MOST_RANKS), demand.what
            continue
        assert demand.needs(number) > demand.has(number), demand.what
        if number > 1:
            assert demand.needs(number - 1) <= demand.has(number - 1), demand.what


def test_lazy_gloo_connects_few_and_starts_soon():
    eager, lazy = Job(), Job(is_gloo_lazy=True)
    assert num_peers(8192, eager) == 8191
    assert num_peers(8192, lazy) == 2 + 13
    assert num_peers(3, lazy) == 2, "there are no more"
    limits = find_limits(lazy, Constants())
    assert first(limits, "open files of every rank") is None
    assert first(limits, "time to connect everybody") is None
    # gloo's gathers connect rank 0 with all.
    assert first(limits, "open files of rank 0, which") == first(
        find_limits(eager, Constants()), "open files of rank 0, which"
    )
    assert not any(limit.what.startswith("size of what a rank of gloo") for limit in limits)
    soon = estimate(lazy, 8192, Constants()).startup.objects
    # 8192 ranks, each with 15 others: a question to write, two for each; 168 bytes each.
    peers = 8192 * 15
    expected = (8192 + 2 * peers) * 1e-5 + 168 * peers / 1e9 + 15 * 1.1e-4
    assert soon == pytest.approx(expected)
    assert soon < estimate(eager, 8192, Constants()).startup.objects / 1000


def test_limits_are_in_order():
    numbers = [limit.first or MOST_RANKS + 1 for limit in find_limits(Job(), Constants())]
    assert numbers == sorted(numbers)


def test_what_does_not_fit_into_memory_breaks_with_any_number_of_ranks():
    limits = find_limits(Job(parameters=400e9), Constants(host_memory=2e12))
    assert first(limits, "memory of a machine: a checkpoint gathered") == 1
    # Eight ranks of a machine read 84 GB each.
    limits = find_limits(Job(parameters=7e9), Constants(host_memory=600e9))
    assert first(limits, "memory of a machine: every rank reads the whole") == 8
    assert first(limits, "memory of a machine: a checkpoint gathered") is None


def test_imports_are_no_limit_where_they_are_local():
    shared = find_limits(Job(), Constants())
    local = find_limits(Job(is_environment_shared=False), Constants())
    assert len(shared) == len(local) + 1
    assert first(shared, "time of all machines to import") > 1


def test_hang_report_has_the_time_that_it_takes():
    # A store so slow that the report's time for it matters.
    own = replace(Constants(), round_trip=1e-3)
    number = first(find_limits(Job(timeout=600), own), "time of the hang report")
    assert 2 * number * 1e-3 > plan_timing(600, number).collect_s
    assert 2 * (number - 1) * 1e-3 <= plan_timing(600, number - 1).collect_s


@pytest.mark.parametrize("backend", BACKENDS)
def test_more_ranks_take_longer_and_fail_more_often(backend):
    job, own = Job(backend=backend), default_constants(backend)
    found = [estimate(job, 8 << shift, own) for shift in range(11)]
    assert (found[0].ranks, found[-1].ranks, found[-1].nodes) == (8, 8192, 1024)
    for get in (
        lambda each: each.startup.total,
        lambda each: each.all_reduce,
        lambda each: each.agreement,
        lambda each: each.checkpoint.reading,
        lambda each: -each.checkpoint.pause,
        lambda each: -each.failures.mtbf,
    ):
        values = [get(each) for each in found]
        assert values == sorted(values)
    assert found[-1].startup.total > gloo_seconds(Cluster(8192, 8, own), 8191)


def test_one_rank_has_nobody_to_wait_for():
    alone = estimate(Job(is_environment_shared=False), 1, Constants())
    assert (alone.all_reduce, alone.agreement) == (0, 0)
    assert alone.startup.total == Constants().import_seconds


def test_saving_behind_stops_training_less():
    stopped = estimate(Job(), 512, Constants()).failures
    behind = estimate(Job(is_saving_behind=True), 512, Constants()).failures
    assert behind.interval < stopped.interval
    assert behind.lost < stopped.lost


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_constant_says_where_it_is_from(backend):
    own = replace(default_constants(backend), open_files=4096)
    described = describe_constants(own, backend)
    assert list(described) == [each.name for each in fields(Constants)]
    assert described["open_files"] == {
        "value": 4096,
        "unit": "",
        "meaning": "that a process may open (ulimit -n)",
        "origin": "given",
        "source": "",
    }
    for name, about in described.items():
        if name != "open_files":
            assert about["origin"] in ("measured", "cited"), name
            assert about["source"], name
            assert about["value"] > 0, name


def test_gloo_s_links_are_those_of_processors():
    nccl, gloo = default_constants("nccl"), default_constants("gloo")
    differing = {
        each.name
        for each in fields(Constants)
        if getattr(nccl, each.name) != getattr(gloo, each.name)
    }
    links = {"network_bandwidth", "network_latency", "node_bandwidth", "node_latency"}
    assert differing == links
    assert "Ethernet" in describe_constants(gloo, "gloo")["network_bandwidth"]["source"]
