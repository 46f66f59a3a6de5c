"""Each private name of torch is taken away in turn; training goes on without it."""

import re
from pathlib import Path

from mm_dist import _torch_private

NAMES = sorted(set(re.findall(r'"(_[a-z]\w+)"', Path(_torch_private.__file__).read_text())))
TRAIN = """
import os, socket
import torch
import mm_dist
from mm_dist import _torch_private

find = _torch_private._find
for name in os.environ["NAMES"].split():
    _torch_private._find = lambda owner, asked: None if asked == name else find(owner, asked)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    mm_dist.init_dist(rank=0, world_size=1, init_method=address, backend="gloo", timeout=60)
    model = mm_dist.MMDistributedDataParallel(torch.nn.Linear(2, 1))
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    total = torch.ones(1)
    mm_dist.all_reduce(total)
    assert mm_dist.all_gather_object(name) == [name]
    mm_dist.read_flight_records()
    mm_dist.destroy_dist()
    print(name)
"""


def test_training_needs_none_of_them(run_script):
    assert len(NAMES) > 10
    result = run_script(TRAIN, NAMES=" ".join(NAMES))
    assert result.stdout.split() == NAMES, result.stderr
