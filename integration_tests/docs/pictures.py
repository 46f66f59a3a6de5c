"""Draw ``terminal.svg``, ``curves.svg`` and ``step.svg`` from runs of mm-runner's digits example.

Run from ``packages/mm-runner``, with its extras ``plot`` and ``examples`` and pyte:
``python ../../integration_tests/docs/pictures.py``.
"""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.text import Text

from mm_runner import Config, Runner
from mm_runner.hooks import Hook

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS, LINES = 126, 20
SHOWN = "Epoch(val)  [6]"  # the moment at which the terminal is drawn
COMMAND = [f"{Path(sys.executable).parent}/mm-runner", "train", "examples/digits.yaml"]


def draw_terminal(folder: Path) -> None:
    """Draw the terminal in the middle of a run, as its emulator shows it."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(LINES))
        os.execv(COMMAND[0], [*COMMAND, "--work-dir", str(folder)])  # noqa: S606 (a terminal of its own)
    shown = None
    while True:
        try:
            stream.feed(os.read(terminal, 1 << 14))
        except OSError:  # the run has ended
            break
        if shown is None and any(SHOWN in line for line in screen.display):
            shown = [[screen.buffer[row][x] for x in range(COLUMNS)] for row in range(LINES)]
    os.waitpid(child, 0)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere)
        for line in shown or ():
            text = Text()
            for one in line:
                text.append(one.data, style_of(one))
            console.print(text, overflow="crop", no_wrap=True)
    console.save_svg(str(DOCS / "terminal.svg"), title="mm-runner train examples/digits.yaml")


def style_of(character):
    colour = character.fg.replace("brown", "yellow")  # the emulator's name
    is_hex = len(colour) == 6 and set(colour) <= set("0123456789abcdef")
    return f"{'bold ' if character.bold else ''}{'#' * is_hex}{colour}"


def draw_curves(folder: Path) -> None:
    """Draw the loss and the accuracy of that run and of one in bfloat16."""
    half = folder.with_name("bfloat16")
    subprocess.run([*COMMAND, "--amp=bfloat16", f"--work-dir={half}"], check=True)
    out = [f"--out={DOCS / 'curves.svg'}", "--keys", "loss", "accuracy"]
    subprocess.run([COMMAND[0], "plot", str(folder), str(half), *out], check=True)


class StepProfile(Hook):
    """Profile some steps of a training that is warm."""

    first, last = 29, 32

    def before_train_iter(self, runner, *_, **__):
        if runner.iter == self.first:  # the batch of the next step is drawn within
            self.profile = torch.profiler.profile(acc_events=True)
            self.profile.start()

    def after_train_iter(self, runner, *_, **__):
        if runner.iter == self.last:
            self.profile.stop()


def draw_step(folder: Path) -> None:
    """Draw what the processor does in four steps, by the names that torch's profiler records."""
    config = Config.fromfile("examples/digits.yaml")
    config.update(work_dir=str(folder.with_name("profiled")))
    runner = Runner.from_cfg(config)
    hook = StepProfile()
    runner.register_hook(hook)
    runner.train()
    rows = {"data": [], "forward": [], "backward": [], "optimizer": []}
    for event in hook.profile.events():
        if event.cpu_parent is None:
            span = (event.time_range.start / 1e3, event.time_range.elapsed_us() / 1e3)
            rows[kind_of(event.name)].append(span)
    figure = Figure(figsize=(8, 2.2), layout="constrained")
    axes = figure.subplots()
    begin = min(start for spans in rows.values() for start, _ in spans)
    for number, spans in enumerate(rows.values()):
        bars = [(start - begin, width) for start, width in spans]
        axes.broken_barh(bars, (number - 0.4, 0.8), color=f"C{number}")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.savefig(DOCS / "step.svg")


def kind_of(name: str) -> str:
    if "DataLoader" in name:
        return "data"
    if name.startswith("Optimizer."):
        return "optimizer"
    return "backward" if "autograd" in name or "Backward" in name else "forward"


def main() -> None:
    sys.path.insert(0, "examples")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "digits")
        draw_terminal(folder)
        draw_curves(folder)
        draw_step(folder)


main()
