"""Which instruction sets inductor probes; in new processes, since torch remembers what it found."""

import json
import os
import subprocess
import sys

import pytest

from mm_compile._cache._bundle import list_bundles, read_bundle
from mm_compile._cache._key import CacheKey
from mm_compile._cache._shelf import Shelf

cpu_vec_isa = pytest.importorskip("torch._inductor.cpu_vec_isa", reason="before torch 2.5 or so")

# A probe compiles C++. Here it notes the set, and works unless that is said to be broken.
_PICK = """
import json, sys
from contextlib import nullcontext
from torch._inductor import config, cpu_vec_isa
from mm_compile._cache._inductor import probing_until_found

broken, is_eager_to_stop, simdlen = json.loads(sys.argv[1])
config.cpp.simdlen = simdlen
probed = []

def check_build(self, code):
    probed.append(str(self))
    return str(self) not in broken

cpu_vec_isa.VecISA.check_build = check_build
cpu_vec_isa.x86_isa_checker = lambda: ["avx2", "avx512", "avx512_vnni"]
with probing_until_found() if is_eager_to_stop else nullcontext():
    picked = [str(cpu_vec_isa.pick_vec_isa()) for _ in range(2)]
inside = sorted(set(probed))
print(json.dumps([picked, inside, [str(one) for one in cpu_vec_isa.valid_vec_isa_list()]]))
"""


def pick(broken=(), *, stops=True, simdlen=None, capability=None):
    environment = {name: value for name, value in os.environ.items() if "CAPABILITY" not in name}
    if capability:
        environment["ATEN_CPU_CAPABILITY"] = capability
    done = subprocess.run(
        [sys.executable, "-c", _PICK, json.dumps([list(broken), stops, simdlen])],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return json.loads(done.stdout.splitlines()[-1])


pytestmark = pytest.mark.skipif(
    cpu_vec_isa.platform.machine() != "x86_64", reason="others have one set each"
)


def test_probing_stops_at_the_set_that_is_taken():
    picked, probed, later = pick()
    expected, all_probed, all_valid = pick(stops=False)
    assert picked == expected
    assert len(all_probed) > 1
    assert probed == sorted({picked[0]})
    assert later == all_valid, "torch's own list must stay whole"


def test_a_set_that_does_not_work_is_passed_over():
    best = pick()[0][0]
    picked, probed, _ = pick([best])
    assert picked == pick([best], stops=False)[0]
    assert picked[0] != best
    assert best in probed


@pytest.mark.parametrize("wish", [{"simdlen": 256}, {"capability": "avx2"}])
def test_a_certain_set_is_found_where_the_user_wants_it(wish):
    assert pick(**wish)[0] == ["avx2", "avx2"]


def test_only_what_worked_is_kept(tmp_path, monkeypatch):
    asked = []

    def check_build(_self, code):
        asked.append(code)
        return code == "works"

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    instruction_set = cpu_vec_isa.VecAVX2()
    key = CacheKey({"torch": "2.13.0+cpu"}, {})
    for mark in ("first", "second"):  # two processes
        shelf = Shelf(tmp_path, key)
        with shelf.entered():
            for code in ("works", "fails", "fails"):
                assert instruction_set.check_build(code) == (code == "works")
        shelf.publish(mark)
        shelf.close()
    assert asked == ["works", "fails", "fails"]
    verdicts = [read_bundle(path).verdicts for path in list_bundles(tmp_path / key.name)]
    assert [list(each.values()) for each in verdicts] == [[True], [True]]
