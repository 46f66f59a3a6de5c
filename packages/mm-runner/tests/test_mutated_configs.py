"""Sixty configurations with one fault: each ends in one message that names its path."""

import copy
import json
import random
import re
import sys

import pytest
import torch
from strict_task import strict_config

from mm_runner.cli import main

_NUM = 60
# Where a list of one is as good as the one.
_MAY_BE_LISTS = {
    *(f"{phase}_dataloader.dataset" for phase in ("train", "val", "test")),
    *("val_evaluator[0]", "test_evaluator", "param_scheduler", "custom_hooks"),
}
# What may as well be left out.
_OPTIONAL = {
    *("dropout", "scale", "split", "drop_last", "num_workers", "sampler", "collate_fn", "timeout"),
    *("val_interval", "val_begin", "by_epoch", "fp16", "accumulative_counts", "clip_grad", "dtype"),
    *("momentum", "weight_decay", "nesterov", "start_factor", "begin", "end", "T_max", "eta_min"),
    *("prefix", "collect_device", "interval", "max_keep_ckpts", "message", "shuffle"),
    *("val_cfg", "test_cfg"),
    *("cudnn_benchmark", "dist_cfg", "backend", "seed", "deterministic", "window_size", "enable"),
    *(
        "num_digits",
        "mode",
        "fullgraph",
        "detect_anomalous_params",
        "checkpoint",
        "logger",
        "pin_memory",
    ),
    *("work_dir", "param_scheduler", "default_hooks", "custom_hooks", "auto_scale_lr", "env_cfg"),
    *("randomness", "log_processor", "compile", "model_wrapper_cfg", "launcher", "log_level"),
    *("experiment_name", "resume", "lr"),
}
# A type that has a default.
_OPTIONAL_TYPES = {"default_hooks.checkpoint", "default_hooks.logger", "model_wrapper_cfg"}
_OPTIONAL_TYPES |= {"test_cfg"}


def walk(value, keys=()):
    """Yield the keys that lead to everything in ``value``."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in pairs:
        yield (*keys, key)
        if isinstance(item, (dict, list)):
            yield from walk(item, (*keys, key))


def path_of(keys):
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def holder_of(cfg, keys):
    for key in keys[:-1]:
        cfg = cfg[key]
    return cfg


def misspell(draw, word):
    """One slip of the finger, beyond the first letter."""
    at = draw.randrange(1, len(word)) if len(word) > 1 else 0
    letter = draw.choice("abcdefghijklmnopqrstuvwxyz")
    return draw.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
            word[:at] + letter + word[at + 1 :],
        ]
    )


def put_typo(draw, cfg, keys):
    holder, key = holder_of(cfg, keys), keys[-1]
    if isinstance(key, int):
        return None
    wrong = misspell(draw, key)
    if wrong in holder or len(wrong) < 2:
        return None
    items = [(wrong if name == key else name, value) for name, value in holder.items()]
    holder.clear()
    holder.update(items)
    return path_of((*keys[:-1], wrong))


def put_wrong_name(draw, cfg, keys):
    holder, key = holder_of(cfg, keys), keys[-1]
    if key not in {"type", "launcher", "backend", "dtype"} or key == "backend":
        return None
    wrong = misspell(draw, holder[key])
    if wrong.lower() == holder[key].lower():
        return None
    holder[key] = wrong
    return path_of(keys)


def put_wrong_type(draw, cfg, keys):
    holder, key = holder_of(cfg, keys), keys[-1]
    value = holder[key]
    others = {
        bool: ["text", 3, [True], {"a": 1}],
        int: ["text", [1], {"a": 1}, 1.5],
        float: ["text", [0.5], {"a": 1}, True],
        str: [3, ["x", "y"], {"a": 1}, False],
        list: [3, "text", 0.5],
        dict: [3, "text", [3], True],
    }[type(value)]
    wrong = draw.choice(others)
    if keys == ("log_level",) and wrong == 3:
        return None  # a level of logging
    if key == "timeout" and isinstance(wrong, float):
        return None  # a number is a number
    if path_of(keys) in _MAY_BE_LISTS and isinstance(wrong, list):
        return None
    if key == "sampler" and isinstance(wrong, list):
        return None  # indices
    if keys == ("compile",) and wrong is True:
        return None
    holder[key] = wrong
    return path_of(keys)


def leave_out(draw, cfg, keys):
    del draw
    holder, key = holder_of(cfg, keys), keys[-1]
    if isinstance(key, int) or key in _OPTIONAL:
        return None
    if key == "type" and path_of(keys[:-1]) in _OPTIONAL_TYPES:
        return None
    del holder[key]
    return path_of(keys)


def nest(draw, cfg, keys):
    holder, key = holder_of(cfg, keys), keys[-1]
    value = holder[key]
    wrong = draw.choice([[value], {str(key): value}, {"value": value}])
    if isinstance(wrong, list) and path_of(keys) in _MAY_BE_LISTS:
        return None
    holder[key] = wrong
    return path_of(keys)


_FAULTS = [put_typo, put_wrong_name, put_wrong_type, leave_out, nest]


def mutated(seed):
    """Return a configuration with one fault, what it is, and the path of it."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    while True:
        cfg = copy.deepcopy(strict_config())
        keys = draw.choice(list(walk(cfg)))
        fault = draw.choice(_FAULTS)
        path = fault(draw, cfg, keys)
        if path is not None:
            return cfg, fault.__name__, path


_needs_annotations = pytest.mark.skipif(
    not hasattr(torch, "get_autocast_dtype"), reason="torch annotates its optimizers since 2.4"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def names(message, path):
    """Whether ``message`` names the path, or the key and what is around it."""
    path = re.sub(r"\[\d\]$", "", path)  # an item of a list of numbers is shown in the list
    around, _, key = path.rpartition(".")
    return path in message or (around in message and key in message)


def test_the_configuration_itself_has_no_fault(folder, capsys):
    cfg = strict_config()
    cfg["compile"] = False
    (folder / "config.json").write_text(json.dumps(cfg))
    assert main(["train", "config.json"]) == 1
    assert "training began" in capsys.readouterr().err


@_needs_annotations
def test_faults_end_in_one_message_that_names_the_path(folder, capsys):
    silent = []
    for seed in range(_NUM):
        cfg, fault, path = mutated(seed)
        (folder / "config.json").write_text(json.dumps(cfg, indent=1))
        status = main(["train", "config.json"])
        message = capsys.readouterr().err
        is_one = message.startswith("mm-runner: ") and message.count("mm-runner: ") == 1
        if status != 1 or not is_one or "Traceback" in message or not names(message, path):
            silent.append((seed, fault, path, status, message[-300:]))
    assert not silent, f"{len(silent)} of {_NUM}: {silent[:20]}"


@_needs_annotations
def test_a_key_that_is_null_never_ends_in_a_traceback(folder, capsys):
    seen = []
    for keys in [*walk(strict_config())][::2]:  # they take long
        cfg = copy.deepcopy(strict_config())
        holder_of(cfg, keys)[keys[-1]] = None
        (folder / "config.json").write_text(json.dumps(cfg))
        status = main(["train", "config.json"])
        message = capsys.readouterr().err
        # Without custom_hooks nothing stops it before its data.
        has_begun = "training began" in message or "data was read" in message
        is_told = message.startswith("mm-runner: ") and "Traceback" not in message
        if status != 1 or not (has_begun or (is_told and names(message, path_of(keys)))):
            seen.append((path_of(keys), status, message[-300:]))
    assert not seen
