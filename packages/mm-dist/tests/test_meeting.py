"""How ranks find each other, and what they say if they do not."""

import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from mm_dist import DistInfo, LaunchEnvironment, LaunchError, init_dist
from mm_dist._process_group import _joining
from mm_dist._rendezvous import _address, _meeting, _store
from mm_dist._rendezvous._meeting import meet
from mm_dist._rendezvous._store import StoreAddress, open_store
from mm_dist._state import state

PLACE = LaunchEnvironment("pytorch", 0, 0, 2, 2, 1, "127.0.0.1", 29500, {"rank": "RANK"})


def rank_one(listener, **changes):
    return replace(PLACE, rank=1, local_rank=1, master_port=listener.getsockname()[1], **changes)


@pytest.fixture
def listener():
    """A program that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]  # taken, and nobody listens


def test_unresolvable_master_is_named(monkeypatch):
    assert _address._UNKNOWN_NAME_S < 10
    monkeypatch.setattr(_address.resolve, "__defaults__", (1.0,))
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    for name, value in {**place, "MASTER_ADDR": "no-such-machine.invalid"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"'no-such-machine\.invalid' .* Check the name, or set"):
        init_dist(device_type="cpu")


def test_resolve_waits_for_a_name_that_appears_late(monkeypatch):
    answers = iter([socket.gaierror("not yet"), socket.gaierror("not yet")])
    known = socket.getaddrinfo("127.0.0.1", None, type=socket.SOCK_STREAM)

    def ask(*_args, **_options):
        # A stand-in for a name server that learns of a container.
        failure = next(answers, None)
        if failure is not None:
            raise failure
        return known

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert _address.resolve("worker-0", 80) == [("127.0.0.1", 80)]


def test_rank_that_finds_nobody_tells_what_it_tried(unused_port):
    numeric = rf"at 127\.0\.0\.1:{unused_port} within 0.3 s; tried 127\.0\.0\.1:{unused_port} \("
    with pytest.raises(LaunchError, match=numeric):
        _address.wait_for_listener("127.0.0.1", unused_port, 0.3, rank=3)
    named = rf"localhost -> .*127\.0\.0\.1:{unused_port} \(Connection refused\)"
    with pytest.raises(LaunchError, match=named):
        _address.wait_for_listener("localhost", unused_port, 0.1, rank=3)


def test_rank_waits_for_rank_zero_that_starts_late():
    late = socket.socket()
    late.bind(("127.0.0.1", 0))
    waiting = threading.Thread(
        target=_address.wait_for_listener, args=(*late.getsockname(), 60.0, 1)
    )
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    late.listen()
    waiting.join(30)
    assert not waiting.is_alive()
    late.close()


@pytest.mark.skipif(torch.__version__ < "2.1", reason="it asks nothing when it connects")
def test_rank_does_not_wait_for_a_program_that_is_no_store(listener, monkeypatch):
    monkeypatch.setattr(_store, "_ANSWER_S", 0.5)
    with pytest.raises(
        LaunchError, match=r"not rank 0 of this job: .*does not answer as torch's store"
    ):
        open_store(rank_one(listener), 60)


def test_rank_refuses_the_store_of_another_job(monkeypatch, unused_port):
    monkeypatch.setattr(_meeting, "_SIGNATURE_S", 0.2)
    store = dist.HashStore()
    other, late = replace(PLACE, world_size=3), replace(PLACE, rank=1, master_port=unused_port)
    with pytest.raises(LaunchError, match=r"1 of 3 ranks came .*missing: rank 1-2"):
        meet(store, other, 0, 0.1, {})
    with pytest.raises(LaunchError, match=rf"127\.0\.0\.1:{unused_port}, .*store of another job"):
        meet(store, late, 0, 60, {})


def test_two_processes_of_one_rank_are_told(monkeypatch):
    store = dist.HashStore()
    first = threading.Thread(target=meet, args=(store, PLACE, 0, 60, {}))
    first.start()
    meet(store, replace(PLACE, rank=1), 0, 60, {})
    first.join(60)
    with pytest.raises(LaunchError, match=r"Rank 1 of 2 .* the same rank.*read from RANK"):
        meet(store, replace(PLACE, rank=1), 0, 60, {})
    # A store that the launcher keeps may hold what an earlier attempt left there.
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    meet(store, replace(PLACE, rank=1), 0, 60, {})


RESTARTED = """
import torch, mm_dist
info = mm_dist.init_dist(device_type="cpu", timeout=60)
total = torch.ones(1)
mm_dist.all_reduce(total)
print(total.item())
"""


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "alive"])
def test_newest_process_of_a_rank_joins(start_ranks, free_port, is_killed):
    port = free_port()

    def start(rank):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3}
        return start_ranks(RESTARTED, 1, **place, MASTER_PORT=port)[0]

    first, former = start(0), start(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    while store.add("mm_dist/1/rank/1", 0) == 0:
        time.sleep(0.05)
    if is_killed:
        former.kill()
    newest = start(1)
    while store.add("mm_dist/1/rank/1", 0) == 1:
        time.sleep(0.05)
    ranks = [first, newest, start(2)]
    assert [rank.communicate(timeout=60)[0] for rank in ranks] == ["3.0\n"] * 3
    if not is_killed:
        assert "as the same rank" in former.communicate(timeout=60)[1]


def test_ranks_that_ask_for_different_groups_are_told():
    store, outcomes = dist.HashStore(), {}

    def enter(rank, backend):
        place = replace(PLACE, rank=rank, world_size=3)
        try:
            meet(store, place, 0, 60, {"backend": backend, "steady_timeout": "None"})
        except LaunchError as error:
            outcomes[rank] = str(error)

    backends = enumerate(["gloo", "gloo", "cpu:gloo"])
    threads = [threading.Thread(target=enter, args=each) for each in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    host = socket.gethostname()
    what = f"backend is gloo on rank 0, and cpu:gloo on rank 2 (host {host})."
    assert sorted(outcomes) == [0, 1, 2], "those that agree with rank 0 do not wait for the other"
    assert all(what in message for message in outcomes.values())


@pytest.mark.parametrize("fails_at", ["the name", "the meeting"])
def test_rank_finds_the_others_after_a_first_attempt_that_failed(monkeypatch, free_port, fails_at):
    # The second is a store that ends with a rank 0 of before, while this rank waits in it.
    server = _store._open("localhost", free_port(), 60, is_server=True)
    place = replace(PLACE, rank=1, master_port=server.port)
    info = DistInfo(1, 2, 1, 2, "pytorch", "gloo", torch.device("cpu"))
    address = StoreAddress("127.0.0.1", server.port)
    monkeypatch.setattr(state, "num_joined", 0)
    arguments = (timedelta(seconds=60), address, {"backend": "gloo"})
    if fails_at == "the name":
        monkeypatch.setattr(_address.resolve, "__defaults__", (0.1,))
        lost = replace(place, master_addr="no-such-machine.invalid")
        with pytest.raises(LaunchError, match="is not known"):
            _joining._meet_in_store(info, lost, *arguments)
    else:
        failures = iter([RuntimeError("Connection reset by peer")])
        check_host = _meeting._check_host

        def check_once(store, environment):
            failure = next(failures, None) if environment.rank == 1 else None
            if failure is not None:
                raise failure
            check_host(store, environment)

        monkeypatch.setattr(_meeting, "_check_host", check_once)
    first = threading.Thread(target=meet, args=(server, replace(PLACE), 1, 60, {"backend": "gloo"}))
    first.start()
    _joining._meet_in_store(info, place, *arguments)
    first.join(60)
    assert state.num_joined == 1


def test_missing_ranks_are_named_by_rank_zero(monkeypatch, free_port):
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**place, "MASTER_PORT": str(free_port())}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"1 of 3 ranks came .* within 0.5 s; missing: rank 1-2"):
        init_dist(device_type="cpu", timeout=timedelta(seconds=0.5))
