"""Writes what every process knows of its place: ``ranks.py FILE LAUNCHER``."""

import json
import os
import socket
import sys
from pathlib import Path

import torch

import mm_dist

if __name__ == "__main__":
    info = mm_dist.init_dist(sys.argv[2], device_type="cpu")
    place = {
        "rank": info.rank,
        "local_rank": info.local_rank,
        "local_size": mm_dist.get_local_size(),
        "LOCAL_RANK": int(os.environ["LOCAL_RANK"]),
        "host": socket.gethostname(),
        "launcher": info.launcher,
    }
    places = mm_dist.all_gather_object(place)
    total = torch.tensor([float(info.rank)])
    mm_dist.all_reduce(total)
    assert total.item() == sum(range(info.world_size)), "the ranks do not add up"
    if mm_dist.is_main_process():
        Path(sys.argv[1]).write_text(json.dumps(places))
