"""Two hosts on this machine: network namespaces with an address each, and a link to cut."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

# The link between them is a network of its own: no other one is reached through it.
_NETWORK = "10.83.{number}"
RENDEZVOUS_PORT = 29400


@dataclass
class Host:
    """One of the two.

    Attributes:
        name: Of its namespace.
        address: Of its end of the link.
        started: The processes that were started here.
    """

    name: str
    address: str
    started: list = field(default_factory=list)

    def start(self, command, log, **env):
        """Start a command on this host; what it prints goes to the file ``log``."""
        inside = ["ip", "netns", "exec", self.name, *map(str, command)]
        with Path(log).open("ab") as output:
            process = subprocess.Popen(
                inside,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **env},
            )
        self.started.append(process)
        return process

    def switch_link(self, state):
        """Switch this host's end of the link ``"up"`` or ``"down"``."""
        _ip("-n", self.name, "link", "set", "eth0", state)

    def pids(self):
        """Return all processes of this host."""
        told = _ip("netns", "pids", self.name)
        return [int(word) for word in told.split()]

    def kill_all(self):
        """End all of them at once, as a power cut does."""
        while pids := [pid for pid in self.pids() if not is_zombie(pid)]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


class TwoHosts:
    """Both hosts, from construction until ``close``.

    Raises:
        OSError: If this machine does not let this process make them.
    """

    def __init__(self):
        number = os.getpid() % 250 + 1
        network = _NETWORK.format(number=number)
        self.hosts = [
            Host(f"mmfaults{os.getpid()}{letter}", f"{network}.{index}")
            for index, letter in enumerate("ab", 1)
        ]
        ends = [f"mmf{os.getpid()}{letter}"[:15] for letter in "ab"]
        try:
            for host in self.hosts:
                _ip("netns", "add", host.name)
            _ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for host, end in zip(self.hosts, ends, strict=True):
                _ip("link", "set", end, "netns", host.name, "name", "eth0")
                _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
                _ip("-n", host.name, "link", "set", "lo", "up")
                host.switch_link("up")
        except (subprocess.CalledProcessError, OSError) as error:
            self.close()
            raise OSError(getattr(error, "stderr", "") or str(error)) from error

    def close(self):
        """End all processes on them, and take them away."""
        for host in self.hosts:
            with suppress(subprocess.CalledProcessError, OSError):
                host.kill_all()
                for process in host.started:
                    process.wait()
                # The link goes with the first of them.
                _ip("netns", "delete", host.name)


def children_of(pid):
    """Return the children of a process."""
    found = []
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        with suppress(OSError):
            found += map(int, file.read_text().split())
    return [child for child in found if not is_zombie(child)]


def is_zombie(pid):
    """Return whether a process has ended, whether or not its parent knows."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def run_command(first, *options):
    """Return the command that starts a rank on each of two hosts; ``first`` is where they meet."""
    endpoint = f"{first.address}:{RENDEZVOUS_PORT}"
    place = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    place.append(f"--rdzv-endpoint={endpoint}")
    return [sys.executable, "-m", "mm_dist", "run", *place, *options]


def _ip(*arguments):
    command = ["ip", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
