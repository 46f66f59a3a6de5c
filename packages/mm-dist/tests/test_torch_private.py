"""Removing each private name of torch in turn; importing and training still work."""

import re
from pathlib import Path

from mm_dist import _torch_private

SOURCE = Path(_torch_private.__file__).read_text()
NAMES = sorted(set(re.findall(r'"(_[a-zA-Z]\w+)"', SOURCE)))
TRAIN = """
import os, pathlib, socket, sys, types
import torch
from torch import nn

try:
    import torch._dynamo  # which DistributedDataParallel would import in each process
except ImportError:
    pass

def train(name):
    # Before anything of mm_dist is imported: some names are read at import.
    private = types.ModuleType("mm_dist._torch_private")
    source = pathlib.Path(os.environ["SOURCE"]).read_text()
    lookup = "return getattr(owner, name, None)"
    assert lookup in source
    exec(source.replace(lookup, f"return None if name == {name!r} else getattr(owner, name, None)"),
         private.__dict__)
    sys.modules["mm_dist._torch_private"] = private
    import mm_dist
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    mm_dist.init_dist(rank=0, world_size=1, init_method=address, backend="gloo", timeout=60)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    if name != "_passing_sync_batchnorm_handle":  # torch refuses it on the CPU
        mm_dist.convert_sync_batchnorm(net)
    model = mm_dist.MMDistributedDataParallel(net)
    for _ in range(18):
        model(torch.ones(2, 2)).sum().backward()
    gan = mm_dist.MMSeparateDistributedDataParallel(nn.ModuleDict({"part": nn.Linear(2, 1)}))
    gan.load_state_dict(gan.state_dict(), strict=name != "_register_load_state_dict_pre_hook")
    total = torch.ones(1)
    mm_dist.all_reduce(total)
    assert mm_dist.all_gather_object(name) == [name]
    mm_dist.destroy_dist()
    os.write(1, f"{name} ".encode())  # at once: other forks write too

for name in os.environ["NAMES"].split():
    if not os.fork():
        train(name)
        os._exit(0)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_training_needs_none_of_them(run_script):
    assert len(NAMES) > 15
    result = run_script(TRAIN, NAMES=" ".join(NAMES), SOURCE=_torch_private.__file__)
    assert sorted(result.stdout.split()) == NAMES, result.stderr
