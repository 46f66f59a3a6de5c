"""Two jobs at once on one machine, their ports computed from what the launcher says."""

import os
import socket
from itertools import count

import observed
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from mm_dist import SlurmLauncher, destroy_dist, init_dist


def slurm(job, rank):
    return {
        **observed.SLURM,
        "SLURM_JOB_ID": str(job),
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
    }


def is_free(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def find_jobs():
    """Return two numbers of jobs whose ports happen to be free on this machine."""
    ports = ((job, SlurmLauncher().read(slurm(job, 0)).master_port) for job in count(os.getpid()))
    jobs = (job for job, port in ports if is_free(port))
    return next(jobs), next(jobs)


def _join(process, jobs):
    number, rank = divmod(process, 2)
    os.environ.update(slurm(jobs[number], rank))
    info = init_dist("auto", "gloo", timeout=60, device_type="cpu")
    assert (info.rank, info.world_size) == (rank, 2)
    total = torch.tensor(10 * number + rank)
    dist.all_reduce(total)
    assert total.item() == 20 * number + 1, "the jobs are mixed up"
    destroy_dist()


def test_two_jobs_at_once_both_finish():
    mp.spawn(_join, (find_jobs(),), nprocs=4)
