"""Machines made of Linux namespaces: each has its own address, name, processes and shared memory.

They share the file system, as machines of a cluster share their home directories, and the
processors. Nothing of them shows outside, and all of it ends with the process that made them.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

# No program takes as long, on a machine that has much else to do.
PATIENCE_S = 900
# The first process of a machine: it takes leave of those that others left behind.
_FIRST_PROCESS = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
print("up", flush=True)
while True:
    signal.sigwait({signal.SIGCHLD})
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
_NAMESPACES = ("--net", "--uts", "--mount", "--pid", "--ipc")
_UNSHARE = ("setpriv", "--pdeathsig=KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child")


class Host:
    """One machine.

    Args:
        name: Its host name.
        address: On the network of all.
    """

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        # If the tests are killed, unshare is, and everything on the machine with it.
        self._holder = subprocess.Popen(
            [*_UNSHARE, "--mount-proc", sys.executable, "-c", _FIRST_PROCESS],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None, "a pipe was asked for"
        if self._holder.stdout.readline() != b"up\n":
            raise RuntimeError(f"The machine {name} did not start; see what unshare said.")
        self.pid = _child_of(self._holder.pid)

    def start(
        self,
        *command: object,
        cwd: Path = Path("/"),
        env: Mapping[str, str] | None = None,
        output: IO[str] | int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a program on this machine; its two outputs are one.

        What is returned stands for it outside: it ends as the program does, but a signal has to be
        sent by :meth:`send`.
        """
        return subprocess.Popen(
            self._enter(cwd) + [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )

    def run(
        self, *command: object, cwd: Path = Path("/"), env: Mapping[str, str] | None = None
    ) -> str:
        """Run a program to its end, and return what it prints.

        Raises:
            RuntimeError: If it fails.
        """
        process = self.start(*command, cwd=cwd, env=env)
        try:
            output, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.send(process, signal.SIGKILL)
            raise
        if process.returncode != 0:
            said = f"{shlex.join(map(str, command))} on {self.name} ended with"
            raise RuntimeError(f"{said} {process.returncode}:\n{output}")
        return output

    def send(self, process: subprocess.Popen[str], number: signal.Signals) -> None:
        """Send a signal to the program that :meth:`start` started."""
        os.kill(_child_of(process.pid), number)

    def _enter(self, cwd: Path) -> list[str]:
        # Entering another tree of mounts leads to its root.
        return ["nsenter", f"--target={self.pid}", *_NAMESPACES, "--", "env", f"--chdir={cwd}"]

    def turn_off(self) -> None:
        """End the machine, and everything on it, at once."""
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None, "a pipe was asked for"
        self._holder.stdout.close()


@contextmanager
def network(directory: Path, num_nodes: int) -> Iterator[list[Host]]:
    """Make machines on one network: ``login`` (10.77.0.1), and ``n1`` (10.77.0.11), ``n2``, ...

    Args:
        directory: For the table of names, which is ``/etc/hosts`` on all of them.
        num_nodes: How many besides ``login``.

    Yields:
        The machines, ``login`` first.
    """
    addresses = {"login": "10.77.0.1"}
    addresses |= {f"n{number}": f"10.77.0.{10 + number}" for number in range(1, num_nodes + 1)}
    names = directory / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{text} {name}" for name, text in addresses.items())]
    names.write_text("\n".join(lines) + "\n")
    hosts: list[Host] = []
    try:
        for name, address in addresses.items():
            hosts.append(Host(name, address))
            _furnish(hosts[-1], names)
        _connect(hosts[0], hosts[1:])
        yield hosts
    finally:
        for host in hosts:
            host.turn_off()


def _furnish(host: Host, names: Path) -> None:
    host.run("hostname", host.name)
    host.run("mount", "--bind", names, "/etc/hosts")
    host.run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
    host.run("ip", "link", "set", "lo", "up")


def _connect(login: Host, nodes: list[Host]) -> None:
    """Plug every machine into a switch, which is on the first one."""
    login.run("ip", "link", "add", "switch", "type", "bridge")
    login.run("ip", "address", "add", f"{login.address}/24", "dev", "switch")
    login.run("ip", "link", "set", "switch", "up")
    for node in nodes:
        # Seen from outside: the number of the node's process means nothing on the first machine.
        cable = f"ip link add {node.name} type veth peer name eth0 netns {node.pid}".split()
        subprocess.run(["nsenter", f"--target={login.pid}", "--net", *cable], check=True)  # noqa: S607
        login.run("ip", "link", "set", node.name, "master", "switch", "up")
        node.run("ip", "address", "add", f"{node.address}/24", "dev", "eth0")
        node.run("ip", "link", "set", "eth0", "up")


def _child_of(pid: int) -> int:
    """Return the process that ``pid`` has started; wait for it for a moment."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + 10
    while not (found := children.read_text().split()):
        if time.monotonic() > end:
            raise RuntimeError(f"Process {pid} has started no other one.")
        time.sleep(0.01)
    return int(found[0])


def under_names(names: Path) -> list[str]:
    """Return what to put before a command so that ``names`` is its ``/etc/hosts``."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "bash", "-c", script, str(names)]


def why_no_hosts() -> str | None:
    """Return why machines cannot be made here, ``None`` if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "machines are made of Linux namespaces, which needs root"
    probe = subprocess.run(
        [*_UNSHARE, "ip", "link", "add", "probe", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    if probe.returncode == 0:
        return None
    return f"machines cannot be made of namespaces here: {probe.stderr.strip()}"
