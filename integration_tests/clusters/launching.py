"""Commands that are started on several machines at once."""

import signal
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hosts import PATIENCE_S, Host
from training import HERE, user_environment


@contextmanager
def started(
    *commands: tuple[Host, Sequence[object]], cwd: Path = HERE
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start one command on each of the given machines; nothing of them is left afterwards."""
    processes = [
        host.start(*command, cwd=cwd, env=user_environment()) for host, command in commands
    ]
    try:
        yield processes
    finally:
        for (host, _), process in zip(commands, processes, strict=True):
            _end(host, process)


def _end(host: Host, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None, "a pipe was asked for"
    if process.poll() is None:
        # A launcher takes its ranks with it, if it is asked.
        host.send(process, signal.SIGTERM)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            host.send(process, signal.SIGKILL)
            process.wait()
    process.stdout.close()


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for programs to end; return what each printed."""
    # All at once: one whose pipe is full would make the others wait for it.
    with ThreadPoolExecutor() as readers:
        return list(
            readers.map(lambda process: process.communicate(timeout=PATIENCE_S)[0], processes)
        )


def run_on(nodes: Sequence[Host], *commands: Sequence[object], cwd: Path = HERE) -> list[str]:
    """Run one command on each machine to its end; return what each printed."""
    with started(*zip(nodes, commands, strict=True), cwd=cwd) as processes:
        outputs = finish(processes)
    statuses = [process.returncode for process in processes]
    assert statuses == [0] * len(nodes), "\n".join(outputs)
    return outputs
