"""One run over two hosts, watched from outside while faults befall it."""

import time
from pathlib import Path

from long_run import INTERVAL
from two_hosts import children_of, run_command

from mm_runner.checkpoint import latest_readable

SCRIPT = Path(__file__).with_name("long_run.py")
# The launchers notice a cut after 3 s.
OPTIONS = (
    "--max-restarts=1000",
    "--rdzv-conf=join_timeout=60,read_timeout=5,keep_alive_interval=1,keep_alive_max_attempt=3",
)
PACE_S = 0.02
# Starting two ranks takes this long at most, on a machine that has something else to do.
START_S = 90


class Job:
    """The run, the launchers of both hosts, and what they have said.

    Args:
        hosts: Both.
        work_dir: Of the run, on a file system that both share.
        commands: What starts the launcher of each host; by default that of ``long_run.py``.
    """

    def __init__(self, hosts, work_dir, commands=None):
        self.hosts, self.work_dir = hosts, Path(work_dir)
        self.commands = commands or [[*run_command(hosts[0], *OPTIONS), SCRIPT, work_dir]] * 2
        self.logs = [self.work_dir / f"launcher_{host.name[-1]}.log" for host in hosts]
        self.launchers = [None, None]

    def start(self, index):
        """Start the launcher of one host, as its scheduler does."""
        env = {"PACE_S": str(PACE_S)}
        host, log = self.hosts[index], self.logs[index]
        self.launchers[index] = host.start(self.commands[index], log, **env)

    def launcher(self, index):
        """Return the process of the launcher on a host."""
        return self.launchers[index].pid

    def rank(self, index):
        """Return the process of the rank on a host."""
        (pid,) = children_of(self.launcher(index))
        return pid

    def steps(self, rank):
        """Return ``(time, number, process)`` of each step that a rank has told of."""
        try:
            lines = (self.work_dir / f"steps_{rank}").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        whole = (line.split() for line in lines if line.endswith("\n"))
        return [(float(when), int(number), int(pid)) for when, number, pid in whole]

    def newest_step(self):
        """Return the number of the newest step that any rank has told of."""
        return max((steps[-1][1] for steps in map(self.steps, range(2)) if steps), default=0)

    def saved_step(self):
        """Return how many steps the newest whole checkpoint has; 0 without one."""
        _, content = latest_readable(self.work_dir, lambda _: None)
        return 0 if content is None else content["meta"]["iter"]

    def wait_until(self, condition, limit_s, what):
        """Wait; return the time it took.

        Raises:
            AssertionError: After ``limit_s``, with what the launchers have said last.
        """
        begin = time.monotonic()
        while not (value := condition()):
            if time.monotonic() > begin + limit_s:
                raise AssertionError(f"{what}: not within {limit_s:.0f} s\n{self.last_words()}")
            time.sleep(0.05)
        assert value
        return time.monotonic() - begin

    def wait_for_steps(self, since, limit_s=START_S, num_steps=2 * INTERVAL):
        """Wait until both ranks have taken some steps after a point in time, a checkpoint too."""

        def is_under_way():
            newer = [[step for step in self.steps(rank) if step[0] > since] for rank in range(2)]
            return all(len(steps) >= num_steps for steps in newer)

        return self.wait_until(is_under_way, limit_s, "both ranks train")

    def said(self, index):
        """Return all that the launcher of a host, and its ranks, have printed."""
        return self.logs[index].read_text(errors="replace")

    def last_words(self):
        """Return the end of what both have printed."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in self.logs)

    def end_soon(self):
        """Tell the run where to end, a little ahead of where it is; return the number."""
        number = self.newest_step() + 5 * INTERVAL
        unfinished = self.work_dir / "unfinished_end"
        unfinished.write_text(str(number))
        unfinished.rename(self.work_dir / "end_at")
        return number

    def is_over(self):
        """Return whether both launchers have ended."""
        return all(launcher.poll() is not None for launcher in self.launchers)
