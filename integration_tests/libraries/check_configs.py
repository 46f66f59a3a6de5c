"""Check every configuration of a library on the meta device: ``check_configs.py PACKAGE TABLE``.

Writes a table of Markdown: what fits, and why others do not. Of the data only the description is
checked: a dataset of fixed length takes the place of what is not on this machine.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import warnings
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from mm_runner import Runner
from mm_runner.cli._configuration import add_config_arguments, load_config, located
from mm_runner.registry import init_default_scope
from mm_runner.runner._checks import check_run, run_arguments
from mm_runner.tools import make_plan

NO_BOXES = str(Path(__file__).with_name("no_boxes.json"))
LONGEST_S = 180
LONGEST_REASON = 160
# Parts of errors, and what they mean; the first that is found counts.
MEANINGS = {
    "needs an operator": ("mmcv.ops", "mmcv-lite", "MultiScaleDeformableAttention"),
    "needs a download": (
        "Download it",
        "huggingface",
        "urlopen",
        "can not be found",
        "load tokenizer",
        "OFA-Sys",
    ),
    "needs a package": (
        "pip install",
        "is installed",
        "No module named",
        "requires the",
        "Please install",
    ),
    "needs its dataset": (
        "'Numbers' object has",
        "BaseVideoDataset",
        "must be ConcatDataset",
        "No such file or directory: 'data/",
    ),
    "needs a process group": ("process group has not been initialized",),
    "is part of a configuration": ("cfg.model: this key is missing",),
}


class Numbers(torch.utils.data.Dataset):
    """Stands for a dataset that is not on this machine."""

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        return index


def check(name):
    """Plan a run of the config ``name``; return ``("fits", "")`` or what it is, and the reason."""
    parser = argparse.ArgumentParser()
    add_config_arguments(parser)
    options = parser.parse_args([name])
    try:
        cfg = load_config(options)
        init_default_scope(cfg.get("default_scope"))
        check_run(run_arguments(cfg, Runner), cfg, Runner)
        for evaluator in (cfg.get("val_evaluator"), cfg.get("test_evaluator")):
            for metric in evaluator if isinstance(evaluator, list) else [evaluator or {}]:
                if "ann_file" in metric:
                    metric["ann_file"] = NO_BOXES
        if cfg.get("train_dataloader"):
            cfg.train_dataloader.dataset = Numbers()
        make_plan(cfg)
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        reason = " ".join(f"{type(error).__name__}: {located(error, options)}".split())
        found = (kind for kind, parts in MEANINGS.items() if any(one in reason for one in parts))
        return next(found, "refused"), reason
    return "fits", ""


def check_apart(name):
    """Do so in a process of its own, which has imported everything."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(LONGEST_S)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        os.write(write_end, json.dumps(check(name)).encode()[:60_000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return tuple(json.loads(text)) if text else ("refused", f"no answer in {LONGEST_S} s")


def main():
    """Check all, print the counts, and write the table."""
    package, table = sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    for part in ("models", "datasets"):  # for all processes at once
        with suppress(ImportError):
            importlib.import_module(f"{package}.{part}")
    root = Path(find_spec(package).submodule_search_locations[0], ".mim", "configs")
    files = [
        one.relative_to(root) for one in sorted(root.rglob("*.py")) if "_base_" not in str(one)
    ]
    rows = {}
    for file in files:
        rows[str(file)] = check_apart(f"{package}::{file}")
        sys.stdout.write(f"{file}: {rows[str(file)][0]}\n")
    counts = Counter(kind for kind, _ in rows.values())
    lines = [f"# {package}: {len(rows)} configurations", ""]
    lines += [f"* {kind}: {number}" for kind, number in counts.most_common()]
    lines += ["", "| configuration | | reason |", "|---|---|---|"]
    for file, (kind, reason) in rows.items():
        shown = reason.replace(str(root), "").replace("|", "/")[:LONGEST_REASON]
        lines += [f"| {file} | {kind} | {shown} |"] if kind != "fits" else []
    Path(table).write_text("\n".join([*lines, ""]), encoding="utf-8")
    sys.stdout.write("\n".join(lines[: 2 + len(counts)]) + "\n")


if __name__ == "__main__":
    main()
