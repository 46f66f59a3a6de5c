"""``mm-dist check``: try the machines of a job before the job.

Before a process group exists, the ranks leave notes for each other in torch's store, each rank a
number that does not grow with the job but for its connections, which are linear. Rank 0 judges.
"""

import argparse
import os
import sys
from contextlib import closing
from typing import Any

from mm_dist._backends import choose_backend
from mm_dist._command._addresses import own_addresses
from mm_dist._command._check_board import Board, meeting_at_store, open_board
from mm_dist._command._check_facts import Problem, find_differences, read_facts
from mm_dist._command._check_reach import Doorbell, find_unreachable, ring_others
from mm_dist._command._check_report import FIRST_RANK_STATUS, Report, find_notes
from mm_dist._command._check_speed import measure_all_reduce, summarize_speed
from mm_dist._command._output import check_json_target, write_error, write_json, write_line
from mm_dist._command._worker import record_failure
from mm_dist._device_choice import available_device_type
from mm_dist._errors import LaunchError, MMDistError
from mm_dist._launchers import (
    LaunchEnvironment,
    libuv_variables,
    observe_job,
    select_launcher,
)
from mm_dist._process_group import destroy_dist, init_dist
from mm_dist._process_group._address import resolve
from mm_dist._process_group._interface import gloo_interface, name_address
from mm_dist._timeout import read_timeout

_SLACK_S, _FAREWELL_S = 10.0, 5.0


def check_cluster(options: argparse.Namespace) -> int:
    """Take part in the check as one rank.

    Returns:
        The exit status, equal on all ranks that got the verdict: 0, 10 + the lowest rank to look
        at (at most 74), or 1 if it is none in particular.

    Raises:
        ConfigError: If an option cannot be used.
        LaunchError: If the environment does not fit the launcher.
    """
    limit = read_timeout(options.timeout)
    limit_s = limit.total_seconds() if limit is not None else 0.0
    variables = observe_job(os.environ)
    environment = select_launcher(options.launcher, variables).read(variables)
    # A word that nobody knows shall not cost the others their wait.
    device_type = options.device_type or available_device_type()
    choose_backend(options.backend, device_type, is_warning=False)
    if environment.rank == 0:
        check_json_target(options.json)
    os.environ.update(libuv_variables(sys.platform, os.environ))
    facts = read_facts(options.device_type, options.config)
    if environment.master_addr is None:
        return _Check(environment, options, Board(), limit_s).run(facts)
    try:
        board = open_board(environment, limit_s)
    except LaunchError as error:
        write_error(f"mm-dist check: {error}")
        return FIRST_RANK_STATUS
    return _Check(environment, options, board, limit_s).run(facts)


class _Check:
    """One rank's part of the check; rank 0's holds the report."""

    def __init__(
        self,
        environment: LaunchEnvironment,
        options: argparse.Namespace,
        board: Board,
        limit_s: float,
    ) -> None:
        self._rank, self._count = environment.rank, environment.world_size
        self._environment, self._options = environment, options
        self._board, self._limit_s = board, limit_s
        self._report = Report(environment.launcher, self._count, {})

    def run(self, facts: dict[str, Any]) -> int:
        """Go through all parts; return the exit status."""
        with closing(Doorbell()) as door:
            table = self._exchange_facts({**facts, **self._describe_door(door)})
            if table is None:
                return self._give_up()
            if len(table) == self._count:
                missed = ring_others(self._rank, table, self._limit_s)
                self._board.post(f"missed/{self._rank}", missed)
            # Until then others may still come to this door.
            is_going_on = self._judge_connections(table)
        if is_going_on is None:
            return self._give_up()
        outcome = self._measure() if is_going_on else {}
        if is_going_on:
            self._board.post(f"speed/{self._rank}", outcome)
        status = self._finish(is_measured=is_going_on)
        if status is None:
            return self._give_up()
        if "error" in outcome:
            # A group that failed may wait for ever for its end.
            sys.stdout.flush()
            os._exit(status)
        return status

    def _describe_door(self, door: Doorbell) -> dict[str, Any]:
        towards = self._environment.master_addr
        return {
            "addresses": own_addresses(resolve(towards, 0)[0][0] if towards else "127.0.0.1"),
            "port": door.port,
            "word": door.word,
            "name_address": name_address(),
            "interface": gloo_interface(self._environment, os.environ),
        }

    def _exchange_facts(self, facts: dict[str, Any]) -> dict[int, dict[str, Any]] | None:
        self._board.post(f"facts/{self._rank}", facts)
        if self._rank == 0:
            # One note with all: each rank reads one, and not one from every other rank.
            self._board.post(
                "table", self._board.collect("facts", range(self._count), self._limit_s)
            )
        table = self._board.wait("table", 2 * self._limit_s + _SLACK_S)
        return None if table is None else {int(rank): each for rank, each in table.items()}

    def _judge_connections(self, table: dict[int, dict[str, Any]]) -> bool | None:
        if self._rank == 0:
            self._report.facts = table
            self._report.problems += self._find_problems(table)
            self._report.notes += find_notes(table)
            self._board.post("going on", not self._report.problems)
        answer: bool | None = self._board.wait("going on", 2 * self._limit_s + _SLACK_S)
        return answer

    def _find_problems(self, table: dict[int, dict[str, Any]]) -> list[Problem]:
        absent = [rank for rank in range(self._count) if rank not in table]
        if absent:
            return [
                *self._describe_absent(absent, f"did not come within {self._limit_s:g} s"),
                *find_differences(table),
            ]
        missed = self._board.collect("missed", table, self._limit_s + _SLACK_S)
        silent = [rank for rank in range(self._count) if rank not in missed]
        return [
            *self._describe_absent(silent, "came, and then fell silent"),
            *find_differences(table),
            *find_unreachable(missed, {rank: each["host"] for rank, each in table.items()}),
        ]

    def _describe_absent(self, ranks: list[int], what: str) -> list[Problem]:
        return [
            Problem("absent", rank, f"rank {rank} of {self._count} {what}; look at its machine")
            for rank in ranks
        ]

    def _measure(self) -> dict[str, Any]:
        options = self._options
        try:
            with meeting_at_store():
                info = init_dist(
                    options.launcher,
                    options.backend,
                    timeout=self._limit_s,
                    device_type=options.device_type,
                )
                times = measure_all_reduce(info.device, options.max_size) if info.backend else {}
                destroy_dist()
        except (MMDistError, RuntimeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"times": times, "backend": info.backend}

    def _finish(self, *, is_measured: bool) -> int | None:
        """Let rank 0 report, and return the exit status of all ranks."""
        if self._rank == 0:
            if is_measured:
                self._judge_speed()
            self._write_report()
            self._board.post("verdict", self._report.verdict)
        verdict = self._board.wait("verdict", 3 * self._limit_s + _SLACK_S)
        if verdict is None:
            return None
        if verdict["status"]:
            self._tell_launcher(**verdict)
        self._board.post(f"gone/{self._rank}", "")
        if self._rank == 0:
            # The store may end with this process.
            self._board.collect("gone", self._report.facts, _FAREWELL_S)
        return int(verdict["status"])

    def _tell_launcher(self, status: int, speaker: int, reason: str) -> None:
        """Let the launcher say it too, as the last thing; it shows the rank that is first."""
        if self._rank == speaker:
            record_failure(f"mm-dist check: {reason}", reason, status=status)
            return
        self._board.wait(f"gone/{speaker}", _FAREWELL_S / 2)
        text = f"mm-dist check: see rank {speaker}"
        record_failure(text, text, status=status, is_first=False)

    def _judge_speed(self) -> None:
        outcomes = self._board.collect("speed", range(self._count), 2 * self._limit_s + _SLACK_S)
        silent = [rank for rank in range(self._count) if rank not in outcomes]
        failed = {rank: each["error"] for rank, each in outcomes.items() if "error" in each}
        self._report.problems += self._describe_absent(silent, "did not finish its all-reduces")
        self._report.problems += [
            Problem("group", None, f"rank {rank}: {error}") for rank, error in failed.items()
        ]
        if silent or failed:
            return
        self._report.backend = outcomes[0]["backend"]
        self._report.speed = summarize_speed({r: each["times"] for r, each in outcomes.items()})

    def _write_report(self) -> None:
        if self._options.json:
            write_json(self._report.as_json(), self._options.json)
        if self._options.json != "-":
            write_line(self._report.as_text())

    def _give_up(self) -> int:
        write_error(
            f"mm-dist check: rank {self._rank}: rank 0 at {self._environment.master_addr}:"
            f"{self._environment.master_port} fell silent; look at its machine"
        )
        return FIRST_RANK_STATUS
