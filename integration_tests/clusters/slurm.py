"""A cluster of Slurm: its real daemons, one controller and a node daemon on each machine."""

import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from hosts import Host

PARTITION, URGENT_PARTITION = "mm_dev", "urgent"
# Of the daemons and of munge, which tells them who sends a request.
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
# More processors than there are, and GPUs that nobody has: only Slurm counts them.
_CONFIGURATION = """
ClusterName=clusters
SlurmctldHost={login}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={run}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SwitchType=switch/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=30
MinJobAge=3600
SlurmdParameters=config_overrides
SlurmctldPidFile={run}/slurmctld.pid
SlurmdPidFile={run}/slurmd-%n.pid
SlurmdSpoolDir={run}/spool-%n
StateSaveLocation={run}/state
GresTypes=gpu
{nodes}
PartitionName={partition} Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName={urgent} Nodes=ALL State=UP PriorityTier=2 PreemptMode=OFF
"""
_NODE = "NodeName={name} NodeAddr={address} CPUs=40 RealMemory=4000 Gres=gpu:8"


class Slurm:
    """Sends what users and administrators say to the controller.

    Args:
        login: The machine where the controller is, and where users work.
        nodes: The machines that run jobs.
        env: The environment of all commands, and so of all jobs.
    """

    def __init__(self, login: Host, nodes: Sequence[Host], env: Mapping[str, str]) -> None:
        self.login, self.nodes, self.env = login, nodes, env

    def run(self, *command: object, cwd: Path = Path("/")) -> str:
        """Run a command of Slurm to its end, and return what it prints."""
        return self.login.run(*command, cwd=cwd, env=self.env)

    def start(self, *command: object, cwd: Path = Path("/")) -> subprocess.Popen[str]:
        """Start a command of Slurm, such as ``srun``."""
        return self.login.start(*command, cwd=cwd, env=self.env)

    def submit(self, *options_and_script: object, cwd: Path) -> str:
        """Submit a script by ``sbatch``; return the number of the job."""
        return self.run("sbatch", "--parsable", *options_and_script, cwd=cwd).strip()

    def describe(self, job: str) -> dict[str, str]:
        """Return what the controller says of a job."""
        return dict(re.findall(r"(\w+)=(\S*)", self.run("scontrol", "-o", "show", "job", job)))

    def wait_for(self, job: str, *states: str, limit_s: float = 300) -> dict[str, str]:
        """Wait until a job is in one of the states; return what the controller says of it then.

        Raises:
            TimeoutError: If it is not, within ``limit_s``, or can never be.
        """
        end = time.monotonic() + limit_s
        while (found := self.describe(job))["JobState"] not in states:
            is_over = found["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
            if is_over or time.monotonic() > end:
                output = Path(found.get("StdOut", ""))
                said = output.read_text() if output.is_file() else ""
                raise TimeoutError(f"{job} is not {states} but {found}; it printed:\n{said}")
            time.sleep(0.1)
        return found

    def seconds_since(self, job: str, event: str) -> float:
        """Return how long ago ``"SubmitTime"``, or another time of a job, is."""
        then = datetime.fromisoformat(self.describe(job)[event])
        return (datetime.now() - then).total_seconds()  # noqa: DTZ005 - Slurm's is local as well

    def wait_until_idle(self) -> None:
        """Wait until every node can take a job."""
        end = time.monotonic() + 60
        while self.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() != str(
            len(self.nodes)
        ):
            if time.monotonic() > end:
                raise TimeoutError(f"Not all nodes are idle:\n{self.run('sinfo', '-N', '-l')}")
            time.sleep(0.1)


@contextmanager
def slurm_cluster(hosts: Sequence[Host], run: Path, env: Mapping[str, str]) -> Iterator[Slurm]:
    """Start the daemons on machines, ``login`` first, and end them afterwards.

    Args:
        hosts: The machine of the controller, then those that run jobs.
        run: An empty folder that everybody may enter, for what the daemons keep.
        env: The environment of users.
    """
    login, *nodes = hosts
    _configure(login, nodes, run)
    own = {**os.environ, "SLURM_CONF": str(run / "slurm.conf")}
    daemons: list[tuple[Host, subprocess.Popen[str]]] = []
    try:
        with (run / "daemons.log").open("w") as log:
            munged = ("munged", "--foreground", f"--socket={run}/munge.socket")
            files = [f"--{name}-file={run}/munge.{name}" for name in ("key", "log", "pid", "seed")]
            daemons.append((login, login.start(*munged, *files, env=own, output=log)))
            daemons.append((login, login.start("slurmctld", "-D", env=own, output=log)))
            for node in nodes:
                command = ("slurmd", "-D", "-N", node.name)
                daemons.append((node, node.start(*command, env=own, output=log)))
        slurm = Slurm(login, nodes, {**env, "SLURM_CONF": str(run / "slurm.conf")})
        _wait_for_controller(slurm, run, [process for _, process in daemons])
        yield slurm
    finally:
        for host, process in reversed(daemons):
            if process.poll() is None:
                host.send(process, signal.SIGTERM)
            process.wait(timeout=60)


def _configure(login: Host, nodes: Sequence[Host], run: Path) -> None:
    for name in ("state", *(f"spool-{node.name}" for node in nodes)):
        (run / name).mkdir()
    described = [_NODE.format(name=node.name, address=node.address) for node in nodes]
    text = _CONFIGURATION.format(
        login=login.name,
        address=login.address,
        run=run,
        nodes="\n".join(described),
        partition=PARTITION,
        urgent=URGENT_PARTITION,
    )
    (run / "slurm.conf").write_text(text)
    for number in range(8):
        os.mknod(run / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    (run / "gres.conf").write_text(f"Name=gpu File={run}/gpu[0-7]\n")
    key = run / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)


def _wait_for_controller(slurm: Slurm, run: Path, daemons: Sequence[subprocess.Popen[str]]) -> None:
    end = time.monotonic() + 60
    while True:
        if any(process.poll() is not None for process in daemons) or time.monotonic() > end:
            raise RuntimeError(f"Slurm did not start:\n{(run / 'daemons.log').read_text()}")
        try:
            slurm.run("scontrol", "ping")
            slurm.wait_until_idle()
        except RuntimeError:
            time.sleep(0.1)
        else:
            return
