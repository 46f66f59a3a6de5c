"""The formulas of ``mm-dist scale``: values worked out by hand, and limits."""

import json
import math
from dataclasses import replace

import pytest

from mm_dist._scale import Constants, Job
from mm_dist._scale._all_reduce import fastest_all_reduce, ring_all_reduce, tree_all_reduce
from mm_dist._scale._checkpoint import estimate_checkpoint, parts_seconds
from mm_dist._scale._cluster import Cluster
from mm_dist._scale._failures import estimate_failures
from mm_dist._scale._startup import (
    CONNECTIONS_PER_RANK,
    EXCHANGES_PER_RANK,
    estimate_startup,
    gloo_seconds,
    gloo_value_bytes,
    import_seconds,
    nccl_seconds,
    store_seconds,
)

# Small numbers, so that what follows can be worked out by hand.
PLAIN = Constants(network_bandwidth=50, network_latency=10, node_bandwidth=100, node_latency=1)
NOTHING = 1e-30
# Values of torch with gloo's present way of meeting; how long the name of the machine is counts.
VALUES = """
import json, os, socket, sys, time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
import torch.distributed as dist

def count_files():
    return len(os.listdir("/proc/self/fd"))

def meet(size):
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    stores = [dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False) for _ in range(size)]
    before = count_files()
    limit = timedelta(seconds=60)
    with ThreadPoolExecutor(size) as pool:
        join = lambda rank: dist.ProcessGroupGloo(stores[rank], rank, size, limit)
        groups = list(pool.map(join, range(size)))
    keys = [key for key in ("0/0", "0//0//0") if server.check([key])]
    kept.append(groups)
    return len(server.get(keys[0])), (count_files() - before) / size

kept = []
found = [meet(size) for size in (2, 4, 8)]
print(json.dumps([len(socket.gethostname()), *found]))
sys.stdout.flush()
time.sleep(0.05)  # gloo's threads still release objects
os._exit(0)
"""


@pytest.mark.parametrize(
    ("ranks", "per_node", "ring", "tree"),
    [
        (1, 8, 0, 0),
        (2, 8, 1000 / 100 + 2 * 1, 2 * 1000 / 100 + 2 * 1),
        (4, 8, 1.5 * 1000 / 100 + 6 * 1, 2 * 1000 / 100 + 2 * 3),
        (2, 1, 1000 / 50 + 2 * 10, 2 * 1000 / 50 + 2 * 10),
        (4, 2, 1.5 * 1000 / 50 + 4 * 1 + 2 * 10, 2 * 1000 / 50 + 2 * (1 + 10)),
        # Five machines: eight steps between them, and a tree of three levels.
        (10, 2, 1.8 * 1000 / 50 + 10 * 1 + 8 * 10, 2 * 1000 / 50 + 2 * (1 + 30)),
        # The last machine has one rank only.
        (5, 4, 1.6 * 1000 / 50 + 6 * 1 + 2 * 10, 2 * 1000 / 50 + 2 * (3 + 10)),
    ],
)
def test_all_reduces_are_those_worked_out_by_hand(ranks, per_node, ring, tree):
    cluster = Cluster(ranks, per_node, PLAIN)
    assert ring_all_reduce(1000, cluster) == pytest.approx(ring)
    assert tree_all_reduce(1000, cluster) == pytest.approx(tree)
    assert fastest_all_reduce(1000, cluster, "gloo") == (pytest.approx(ring), "ring")
    name = "tree" if tree < ring else "ring"
    assert fastest_all_reduce(1000, cluster, "nccl") == (pytest.approx(min(ring, tree)), name)


def test_rings_and_trees_go_to_their_limits():
    without_latency = replace(PLAIN, network_latency=NOTHING, node_latency=NOTHING)
    ring = [ring_all_reduce(1000, Cluster(2**n, 8, without_latency)) for n in range(4, 21)]
    assert ring == sorted(ring), "the share of the bytes only grows"
    assert ring[-1] == pytest.approx(2 * 1000 / 50, rel=1e-5)
    # Without bytes a ring's steps double with the ranks; a tree gets one level more.
    steps = [ring_all_reduce(0, Cluster(2**n, 1, PLAIN)) for n in (19, 20)]
    assert steps[1] / steps[0] == pytest.approx(2, rel=1e-5)
    levels = [tree_all_reduce(0, Cluster(2**n, 1, PLAIN)) for n in (19, 20)]
    assert levels[1] - levels[0] == pytest.approx(2 * 10)


def test_links_between_machines_count_from_the_second_machine_on():
    assert Cluster(8, 8, PLAIN).bandwidth == 100
    assert Cluster(9, 8, PLAIN).bandwidth == 50
    wide = replace(PLAIN, network_bandwidth=1000)
    assert Cluster(9, 8, wide).bandwidth == 100, "the narrowest place"
    assert (Cluster(9, 8, PLAIN).nodes, Cluster(9, 8, PLAIN).local_ranks) == (2, 8)
    assert Cluster(3, 8, PLAIN).local_ranks == 3


def test_store_serves_ranks_in_turn():
    own = replace(PLAIN, store_connection=2.0, store_exchange=3.0, round_trip=0.5)
    assert store_seconds(Cluster(1, 8, own)) == 0
    per_rank = CONNECTIONS_PER_RANK * 2.0 + EXCHANGES_PER_RANK * 3.0
    expected = 10 * per_rank + EXCHANGES_PER_RANK * 0.5
    assert store_seconds(Cluster(10, 8, own)) == pytest.approx(expected)


def test_gloo_connects_everybody_with_everybody():
    own = replace(PLAIN, store_exchange=1.0, store_bandwidth=8.0, gloo_pair=100.0)
    assert gloo_value_bytes(4) == 168 + 32
    assert gloo_seconds(Cluster(1, 8, own), 0) == 0
    # 4 ranks: 4 write, 16 wait, 16 get; 16 values of 200 bytes; three connections each.
    assert gloo_seconds(Cluster(4, 8, own), 3) == pytest.approx(36 + 16 * 200 / 8 + 300)
    # Two others each: 4 write, 8 wait, 8 get; values without numbers.
    assert gloo_seconds(Cluster(4, 8, own), 2) == pytest.approx(20 + 8 * 168 / 8 + 200)
    questions = replace(own, store_bandwidth=1e30, gloo_pair=NOTHING)
    sizes = replace(own, store_exchange=NOTHING, gloo_pair=NOTHING)
    for constants, growth in ((questions, 4), (sizes, 8)):
        small, large = (gloo_seconds(Cluster(2**n, 8, constants), 2**n - 1) for n in (19, 20))
        assert large / small == pytest.approx(growth, rel=1e-3)


def test_nccl_grows_with_the_ranks_alone():
    own = replace(PLAIN, store_exchange=1.0, nccl_root_rate=64.0, round_trip=2.0)
    assert nccl_seconds(Cluster(1, 8, own)) == 0
    assert nccl_seconds(Cluster(64, 8, own)) == pytest.approx(2 * 64 + 1 + 3 * 32 * 2)
    # More roots from 128 ranks on, so that none serves more.
    assert nccl_seconds(Cluster(1024, 8, own)) == pytest.approx(2 * 1024 + 2 + 3 * 512 * 2)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({"metadata_rate": 10.0}, 5 + 3 * 100 / 10),
        ({"storage_read_bandwidth": 20.0}, 5 + 3 * 1000 / 20),
        ({"node_read_bandwidth": 5.0}, 5 + 1000 / 5),
    ],
    ids=["names", "storage", "a machine's line"],
)
def test_imports_wait_for_the_slowest_of_three(given, seconds):
    fast = {"metadata_rate": 1e9, "storage_read_bandwidth": 1e9, "node_read_bandwidth": 1e9}
    known = {"import_seconds": 5.0, "import_files": 100.0, "import_bytes": 1000.0}
    cluster = Cluster(20, 8, replace(PLAIN, **{**fast, **known, **given}))
    assert import_seconds(cluster, is_shared=True) == pytest.approx(seconds)
    assert import_seconds(cluster, is_shared=False) == 5


def test_start_has_a_group_for_objects_where_the_backend_is_not_gloo():
    cluster = Cluster(16, 8, Constants())
    nccl = estimate_startup(cluster, Job(backend="nccl"))
    gloo = estimate_startup(cluster, Job(backend="gloo"))
    assert nccl.objects == gloo.group == gloo_seconds(cluster, 15)
    assert (nccl.group, gloo.objects) == (nccl_seconds(cluster), 0)
    assert nccl.total == nccl.imports + nccl.store + nccl.group + nccl.objects


def test_checkpoints_are_those_worked_out_by_hand():
    given = {"copy_bandwidth": 100.0, "save_bandwidth": 10.0, "sync_seconds": 7.0}
    given |= {"node_write_bandwidth": 20.0, "storage_write_bandwidth": 30.0}
    given |= {"node_read_bandwidth": 40.0, "storage_read_bandwidth": 50.0}
    given |= {"metadata_rate": 2.0, "store_exchange": 3.0, "round_trip": 0.5}
    own = replace(PLAIN, **given)
    job = Job(parameters=100, bytes_per_parameter=12)
    found = estimate_checkpoint(Cluster(4, 2, own), job)
    # Gathered through links of 50, copied at 100, written by one at 10.
    assert found.gathered == pytest.approx(0.75 * 1200 / 50 + 1200 / 100 + 1200 / 10 + 7)
    # 300 each: a rank writes for 30 s, a machine's two for 30 s, the storage for 40 s.
    assert found.in_parts == pytest.approx(3 + 40 + 5 / 2 + 4 * 3 + 0.5 + 14)
    assert found.pause == pytest.approx(3)
    # Rank 0 reads for 30 s, then two machines share what the storage gives.
    assert found.reading == pytest.approx(30 + 2 * 1200 / 50)


def test_storage_and_the_number_of_files_bound_parts():
    own = Constants()
    size, bound = 1e12, 1e12 / own.storage_write_bandwidth
    for ranks in (8, 512, 8192):
        assert parts_seconds(size, Cluster(ranks, 8, own)) > bound
    # Files are created one after the other.
    many = parts_seconds(size, Cluster(2**24, 8, own))
    assert many > 2**24 / own.metadata_rate


def test_interval_between_checkpoints_is_young_s_and_the_best():
    found = estimate_failures(100, 1e6, stop=50, writing=50, restart=100)
    assert (found.mtbf, found.interval) == (1e4, pytest.approx(1000))
    assert found.lost == pytest.approx(50 / 1000 + (500 + 100) / 1e4)

    def lose(interval):
        return 50 / interval + (interval / 2 + 100) / 1e4

    assert found.lost < min(lose(900), lose(1100))


def test_no_checkpoint_begins_before_the_last_is_written():
    found = estimate_failures(100, 1e6, stop=0.5, writing=400, restart=100)
    assert found.interval == 400, "the best would be 100"
    assert found.lost == pytest.approx(0.5 / 400 + (200 + 399.5 + 100) / 1e4)
    assert estimate_failures(10**6, 1e6, stop=5, writing=5, restart=100).lost == 1


def test_gloo_writes_and_opens_what_the_formulas_say(run_script):
    result = run_script(VALUES)
    if result.returncode and "check" in result.stderr:
        pytest.skip("this torch cannot ask whether a key is there")
    assert result.returncode == 0, result.stderr
    name, *found = json.loads(result.stdout)
    if found[0][0] != gloo_value_bytes(2) - 16 + name:
        pytest.skip("gloo of this torch writes more: an address for each other rank")
    for size, (value_bytes, files) in zip((2, 4, 8), found, strict=True):
        # The formula counts 16 letters for the name of a machine.
        assert value_bytes == gloo_value_bytes(size) - 16 + name
        assert files - (size - 1) == found[0][1] - 1, "a connection to each other rank"
    assert math.isclose(found[0][1], 5, abs_tol=2)
