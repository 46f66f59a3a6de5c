"""Compare what our packages cost with plain torch and with other trainers, in one run.

Each part is a module in ``parts/``. In every round all systems of a part take a turn, in an order
that is drawn anew: in processes of their own, or by steps in one. A ratio is that to the base in
the same round. The table shows medians over rounds, with the lowest and highest.

Run: ``python compare.py [PART ...] [--quick] [--rounds N] [--json FILE] [--chart FILE]``, or
``nox -s bench -- ...``. ``--against FILE`` prints, as a list, the ratios that have moved by more
than their spreads, and 3 %, since the run in FILE. It asserts nothing about speed.
"""

# ruff: noqa: T201 (printing is what it is for)

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_LEAST_CHANGE = 0.03  # of a ratio, to be told
_HERE = Path(__file__).parent
PARTS = sorted(path.stem for path in (_HERE / "parts").glob("[a-z]*.py"))
# MMEngine's fork has the same import name, so it lies in a folder of its own.
_FORK, _FORKS_FOLDER = "onedl_mmengine", str(Path(sys.prefix, "onedl"))
# One thread each, no network, and nothing that a home folder says.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {PARTS}")
    parser.add_argument(
        "--quick", action="store_true", help="a few parts and systems, in some minutes"
    )
    parser.add_argument("--rounds", type=int, help="turns of each system, for all parts")
    parser.add_argument("--only", help="names of systems, separated by commas; the base stays")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--chart", type=Path, help="draw the ratios there, as .svg or .png")
    parser.add_argument("--against", type=Path, help="compare with the numbers of another run")
    parser.add_argument("--sample", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.sample:
        print(json.dumps(take_sample(**json.loads(options.sample))))
        return
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"no part {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    before = json.loads(options.against.read_text()) if options.against else None
    report = {"machine": describe_machine(), "quick": options.quick, "parts": {}}
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    for name in options.parts or PARTS:
        part = importlib.import_module(f"parts.{name}")
        num_rounds = options.rounds or (part.QUICK_ROUNDS if options.quick else part.ROUNDS)
        num_rounds = num_rounds or min(1, len(options.parts))  # a part that was asked for runs
        if num_rounds:
            began = time.perf_counter()
            found = measure(name, part, num_rounds, options)
            found["seconds"] = round(time.perf_counter() - began)
            report["parts"][name] = found
            show(found)
            if options.json:  # what was measured so far outlives a part that fails
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.chart:
        draw(report, options.chart)
    if before is not None:
        print("\n".join(moved(report, before)))
    if any(part["failed"] for part in report["parts"].values()):
        sys.exit("Some systems have failed; see above.")


def describe_machine() -> dict:
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "Python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "load average": round(os.getloadavg()[0], 1),
    }


def find_systems(part, options) -> dict[str, str]:
    """Return the systems of a part that can be measured here, with their versions."""
    wanted = getattr(part, "QUICK_SYSTEMS", part.SYSTEMS) if options.quick else part.SYSTEMS
    wanted = options.only.split(",") if options.only else wanted
    found = {}
    for system, distribution in part.SYSTEMS.items():
        if system != part.BASE and system not in wanted:
            continue
        path = [_FORKS_FOLDER] if system == _FORK else sys.path
        one = next(iter(importlib.metadata.distributions(name=distribution, path=path)), None)
        if one:
            found[system] = f"{distribution} {one.version}"
        else:
            print(f"left out: {system}, as {distribution} is not installed")
    return found


def measure(name, part, num_rounds, options) -> dict:
    """Return the values of each system and measure, one for each round."""
    systems = find_systems(part, options)
    values: dict = {}
    failed: set = set()
    shuffle = random.Random(0).shuffle  # noqa: S311 (an order, no secret)
    for _ in range(num_rounds):
        order = list(systems)
        shuffle(order)
        for turn in [order] if part.TOGETHER else [[system] for system in order]:
            request = {"part": name, "systems": turn, "quick": options.quick}
            samples = {} if failed.intersection(turn) else run_sample(request)
            failed.update(set(turn) - set(samples))
            for system, found in samples.items():
                for label, value in found.items():
                    values.setdefault(label, {}).setdefault(system, []).append(value)
    measures = {
        label: {x: summarize(found[x], found.get(part.BASE)) for x in systems if x in found}
        for label, found in values.items()
    }
    title = {"title": part.TITLE, "base": part.BASE, "aim": part.AIM}
    rounds = {"rounds": num_rounds, "failed": sorted(failed)}
    return {**title, **rounds, "systems": systems, "measures": measures}


def run_sample(request) -> dict:
    """Return the values of each system; nothing if it fails, which is told."""
    command = [sys.executable, __file__, "--sample", json.dumps(request)]
    environment = {**os.environ, **_ENVIRONMENT}
    if request["systems"] == [_FORK]:
        environment["PYTHONPATH"] = _FORKS_FOLDER
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        print(f"{request} failed:\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def take_sample(part, systems, quick) -> dict:
    """Measure in this process; what systems print goes to standard error."""
    module = importlib.import_module(f"parts.{part}")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        return module.measure(systems, quick, Path(folder))


def summarize(values, base) -> dict:
    found = {"median": statistics.median(values), "low": min(values), "high": max(values)}
    if base and all(base) and len(base) == len(values):
        ratios = [one / other for one, other in zip(values, base, strict=True)]
        found["ratio"] = statistics.median(ratios)
        found["ratio low"], found["ratio high"] = min(ratios), max(ratios)
        found["added"] = found["median"] - statistics.median(base)
    return found


def show(part) -> None:
    print(f"\n## {part['title']}\n\nAim: {part['aim']} ({part['rounds']} rounds)")
    print("\n| measure | system | median | low | high | over the base | ratio | low | high |")
    print("| --- | --- |" + " ---: |" * 7)
    for label, systems in part["measures"].items():
        for system, one in systems.items():
            cells = [f"{one[key]:.4g}" for key in ("median", "low", "high")]
            if "ratio" in one:
                cells.append(f"{one['added']:+.4g}")
                cells += [f"{one[key]:.3f}" for key in ("ratio", "ratio low", "ratio high")]
            print(f"| {' | '.join([label, system, *cells])} |", flush=True)


def moved(report, before) -> list[str]:
    """Return a line for each ratio that has left the range that it had, in both runs."""
    lines = []
    for name, part in report["parts"].items():
        old = before["parts"].get(name, {"measures": {}})["measures"]
        for label, systems in part["measures"].items():
            for system, one in systems.items():
                other = old.get(label, {}).get(system, {})
                if "ratio" not in one or "ratio" not in other or system == part["base"]:
                    continue
                if one["ratio low"] == one["ratio high"]:  # of a single round
                    continue
                is_apart = (
                    one["ratio low"] > other["ratio high"] or one["ratio high"] < other["ratio low"]
                )
                if is_apart and abs(one["ratio"] / other["ratio"] - 1) > _LEAST_CHANGE:
                    change = f"{other['ratio']:.3f} to {one['ratio']:.3f}"
                    lines.append(f"* {name}, {label}, {system}: {change} of {part['base']}")
    return lines


def draw(report, path) -> None:
    """Draw a bar for each system: the ratio of the first measure that has one."""
    import matplotlib as mpl  # noqa: PLC0415 (only for this)
    from matplotlib.figure import Figure  # noqa: PLC0415

    mpl.rcParams["svg.fonttype"] = "none"  # text, and no curves
    found = {}
    for part in report["parts"].values():
        for label, systems in part["measures"].items():
            rows = {system: one for system, one in systems.items() if "ratio" in one}
            if len(rows) > 1:
                found[f"{part['title']}: {label}, ratio to {part['base']}"] = rows
                break
    if not found:
        return
    heights = [len(rows) + 1 for rows in found.values()]
    figure = Figure(figsize=(8, 0.35 * sum(heights)), layout="constrained")
    grid = figure.subplots(len(found), 1, squeeze=False, height_ratios=heights).flat
    for axes, (title, rows) in zip(grid, found.items(), strict=True):
        ratios = [one["ratio"] for one in rows.values()]
        errors = [
            [one["ratio"] - one["ratio low"] for one in rows.values()],
            [one["ratio high"] - one["ratio"] for one in rows.values()],
        ]
        colours = ["tab:blue" if name.startswith("mm_") else "tab:gray" for name in rows]
        bars = axes.barh(list(rows), ratios, xerr=errors, color=colours, height=0.7)
        axes.bar_label(bars, fmt="%.2f", padding=3)
        axes.margins(x=0.12)  # for the numbers
        axes.invert_yaxis()
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(title, fontsize="medium", loc="left")
    figure.savefig(path)


if __name__ == "__main__":
    main()
